"""A table with a row for each row of an input, written part by part: a kill loses one part at most.

`columns` says what the columns are, `formats` how rows become bytes and parts one file, `parts` what of an
output is finished.
"""
