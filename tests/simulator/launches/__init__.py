"""What is told of kernels and copies: instruments, records of launches, traces, places."""
