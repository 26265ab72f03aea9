"""Own fast PyTorch programs that do the same work, for comparison with what a user would otherwise run."""
