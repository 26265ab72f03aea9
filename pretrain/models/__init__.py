"""The encoder and its heads. The only folder that imports flax."""
