"""The memory of tensors: owners, host aliases, storages, pinned memory, parts of sparse tensors.

May import: `simgpu._runtime`, `_native` and below.
"""
