"""Spikes, copies that differ, and values that are not finite."""
