"""Figures of a run: metrics, held-out text, trackers."""
