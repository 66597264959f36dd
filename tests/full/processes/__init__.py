"""Processes with simulated devices: fork and exit, tensors that are sent, stacks of threads."""
