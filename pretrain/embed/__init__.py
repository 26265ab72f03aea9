"""Vectors of texts, and searches for the nearest texts."""
