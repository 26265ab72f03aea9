"""Losses of the encoder's training objectives on corrupted text, one objective a file."""
