"""What the encoder must say about the corrupted text: one file per objective."""
