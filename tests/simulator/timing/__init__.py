"""`simgpu.clock`: time of real GPUs, by estimate, against times that are worked out by hand."""
