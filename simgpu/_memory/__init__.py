"""The memory of tensors on a device: ownership, storages, resizing, pinned memory, host aliases.

How many bytes a device has is counted in `_runtime/device.py`; addresses are read and written in
`_native` alone; `torch.simgpu.memory_allocated` and its like are in `_backend/device_module`.

May import: `_native`, `_runtime`, `errors`, `_random`, `torch`.
"""
