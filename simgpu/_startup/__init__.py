"""What a process does when it imports torch: SIMGPU_DEVICE_COUNT, SIMGPU_AS_CUDA, the autoload.

May import: `_cuda`, `_backend/install`, `_backend/torch_patches`, `_runtime`, `_naming`.
"""
