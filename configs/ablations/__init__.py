"""Experiments as rows of the papers' ablation tables: one file per paper."""
