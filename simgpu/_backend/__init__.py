"""Registering the simulated devices with torch: device type, `torch.simgpu`, replaced attributes.

May import: `simgpu._kernels` and below, `simgpu.comm`.
"""
