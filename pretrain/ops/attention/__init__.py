"""Attention with relative positions and dropout, on CPUs, TPUs and GPUs."""
