"""Rows of the papers' ablation tables as configs, one file per paper."""
