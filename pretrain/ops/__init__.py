"""Custom gradients and kernels: arrays in, arrays out, no parameters of their own."""
