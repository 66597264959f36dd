"""Registering the simulated devices with torch: the backend, its device module, what is replaced.

May import: `simgpu._kernels` and below, `simgpu.comm`.
"""
