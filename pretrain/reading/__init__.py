"""Turns prepared records, or a Task that feeds the run, into batches."""
