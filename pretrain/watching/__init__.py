"""Watches a run for loss spikes, replicas that differ, and non-finite values."""
