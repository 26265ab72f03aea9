"""Metrics of a run, evaluation on held-out text, and experiment trackers."""
