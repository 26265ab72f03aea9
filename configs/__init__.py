"""Recipes, one per file; `base.py` has every field with its default."""
