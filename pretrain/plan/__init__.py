"""Reads compiled programs: bytes, collectives, kernels, and the compiler's own cycle estimates."""
