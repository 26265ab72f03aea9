"""Applies a trained encoder to files of any size, row by row in order, in constant memory.

`batches` batches texts of similar length and has a program for each shape, `stream` is the loop from rows to
an output.
"""
