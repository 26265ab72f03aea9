"""A run's directory: checkpoints saved, verified, continued from, and opened to be used."""
