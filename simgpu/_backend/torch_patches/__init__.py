"""Every attribute of torch that is replaced for good: a table in each file, applied by `apply_all`.

May import: `simgpu._backend.device_module`, `simgpu._kernels` and below, `simgpu.comm`.
"""
