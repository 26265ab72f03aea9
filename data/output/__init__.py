"""Writes a table with a row for each row of an input, in parts: a kill loses at most one part.

`columns` finds the columns and their types, `formats` encodes rows and joins parts to a file, and `parts`
tracks the finished parts of an output.
"""
