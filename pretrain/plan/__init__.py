"""What compiled programs say of themselves: bytes, collectives, kernels, the compiler's own cycles."""
