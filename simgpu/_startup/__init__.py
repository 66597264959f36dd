"""Devices without a block: from `import torch` on by SIMGPU_DEVICE_COUNT, or by `simgpu.enable`.

May import: `_cuda`, `_backend/devices`, `_backend/install`, `_backend/torch_patches`, `_runtime`,
`_models`, `errors`, `_naming`, `_patches`, `torch`.
"""
