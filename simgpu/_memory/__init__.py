"""The memory of tensors on a device: ownership, storages, resizing, pinned memory, host aliases.

ownership       `adopt`: fresh host memory becomes a tensor of a device
storages        make, grow and shrink storages
sharing         memory that other processes use too
pinned          pinned host memory

How many bytes a device has is counted in `simgpu._core.device`; only `simgpu._native` reads and
writes addresses; `torch.simgpu.memory_allocated` and the like are in `_backend/namespace`.

May import: `_core`, `_native`, `_util`, `errors`, `torch`.
"""
