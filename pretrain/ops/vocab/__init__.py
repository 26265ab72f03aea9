"""Lookups in the token table and losses over the vocabulary."""
