"""Analyses of pretrained encoders on held-out data, next to baselines without a model."""
