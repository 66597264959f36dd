"""The list of the files here, and `apply_all`, which puts their tables in place."""

from __future__ import annotations

from types import ModuleType

from simgpu._backend.torch_patches import (
    accelerator,
    autocast,
    autograd,
    beside_cuda,
    collectives,
    compile,
    dlpack_export,
    generators,
    pickling,
    printing,
    process_groups,
    script_executors,
    serialization,
    storage_methods,
    stream_types,
    tensor_data,
    tensor_methods,
)
from simgpu._patches import Patches

# No attribute stands in two tables, and every file keeps the stock attributes that it calls. So no
# table depends on another one, and the order is that of what a program meets: passing backward,
# tensors, modules, storages, files, other processes.
FILES: tuple[ModuleType, ...] = (
    autocast,
    autograd,
    beside_cuda,
    script_executors,
    tensor_data,
    accelerator,
    collectives,
    compile,
    storage_methods,
    serialization,
    generators,
    stream_types,
    tensor_methods,
    printing,
    dlpack_export,
    pickling,
    process_groups,
)


def apply_all() -> None:
    """Put all tables in place; nothing puts them back."""
    for file in FILES:
        Patches().apply(file.PATCHES)
