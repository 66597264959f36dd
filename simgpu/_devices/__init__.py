"""Every way to have devices: a `with` block, `simgpu.enable`, the environment at `import torch`.

block           `simgpu.devices`, `as_cuda`, `enable` and `disable`; SIMGPU_DEVICE_COUNT and others
autoload        what `import torch` calls where simgpu is installed

May import: `_backend/install`, `_backend/dynamo`, `_backend/torch_patches`, `_cuda/nvml`, `_cuda`,
`_core`, `_config`, `errors`, `_util`, `torch`.
"""
