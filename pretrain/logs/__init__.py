"""Metrics of a run at intervals, in its files and in experiment trackers."""
