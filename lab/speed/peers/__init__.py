"""The same work in PyTorch, written to be fast: what a user would otherwise run. Our own programs."""
