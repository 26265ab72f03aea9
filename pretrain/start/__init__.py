"""The start of a run: checks before compilation, the initial state, and the table of listeners."""
