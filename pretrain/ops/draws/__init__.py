"""Random numbers as functions of a row's key."""
