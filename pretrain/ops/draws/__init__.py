"""Random numbers that are functions of a row's key."""
