"""Corruption of the encoder's input: masks, random tokens, or a generator's proposals."""
