"""Rows of a paper's table, or arms of a study of our own, run with several seeds and compared."""
