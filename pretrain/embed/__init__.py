"""Vectors of texts, and their neighbours."""
