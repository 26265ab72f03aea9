"""Writes a table with a row for each row of an input; a file appears whole or not at all.

`columns` finds the columns and their types, `formats` writes rows as CSV, JSON lines, Parquet or .npy.
"""
