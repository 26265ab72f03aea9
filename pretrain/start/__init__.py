"""The beginning of a run: checks before anything compiles, the starting state, the table of listeners."""
