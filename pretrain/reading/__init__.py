"""Prepared records, or a Task that feeds the run, to batches."""
