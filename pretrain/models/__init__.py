"""The encoder and the heads. The only folder that imports flax."""
