"""Custom gradients and kernels: functions of arrays, without parameters of their own."""
