"""How the text handed to the encoder was damaged: masks, random tokens, or a generator's proposals."""
