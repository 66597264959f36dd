"""Every attribute of torch that is replaced for good, a file for each part of torch.

May import: `simgpu._kernels` and below, `simgpu.comm`.
"""
