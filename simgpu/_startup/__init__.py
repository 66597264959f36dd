"""What a process does when it starts: loading with torch, SIMGPU_DEVICE_COUNT, SIMGPU_AS_CUDA.

May import: `simgpu._cuda` and below.
"""
