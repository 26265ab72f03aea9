"""Answers of a trained encoder to a file of any size: rows in, rows out, in order and in flat memory.

`batches` puts texts of like length together, `compiled` has a program for each shape, `stream` is the loop
from rows to parts of an output.
"""
