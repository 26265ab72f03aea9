"""Training objectives of the encoder on corrupted text: one file per objective."""
