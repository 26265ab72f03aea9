"""Experiments: one file per recipe; `base.py` holds every field there is."""
