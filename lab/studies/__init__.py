"""Runs and compares the rows of a paper's table, or the arms of a study, with several seeds."""
