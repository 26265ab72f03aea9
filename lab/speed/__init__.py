"""Measurements of learning, speed and memory; results go to docs/results/learning.md."""
