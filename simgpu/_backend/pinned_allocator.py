"""`torch.empty(..., pin_memory=True)`: the allocator of pinned memory that C++ asks the hooks for.

In releases and builds where the hooks' table of virtual functions cannot be replaced, or none of
its functions turns out to be the one that returns the allocator, such calls raise as before.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._native.callbacks import address_answer
from simgpu._native.host_allocator import SEARCHED, allocator
from simgpu._native.virtual_tables import Table
from simgpu._runtime import world
from simgpu._runtime.launch import HOST_KEYS

_empty = torch.ops.aten.empty.memory_format._handle.redispatch_boxed


def let_hooks_allocate(hooks: Table) -> bool:
    """Let tensors be made in pinned memory while there are devices; returns whether they can.

    Which virtual function returns the allocator is found by trying: each in turn is made to return
    ours, a pinned tensor is asked for, and its storage shows whose memory it got.
    """
    if not allocator.copy():
        return False
    give = address_answer(allocator.address)
    options: dict[str, Any] = {"device": torch.device("cpu"), "pin_memory": True}
    for position in range(2, SEARCHED):  # the first two destroy the object
        put_back = hooks.replace(position, give)
        try:
            made = _empty(HOST_KEYS, (1,), **options)
        except RuntimeError:  # the stock function was asked, and has no allocator
            continue
        finally:
            put_back()
        allocator.offset = allocator.place_in(made.untyped_storage())
        if allocator.offset is not None:
            _while_there_are_devices(hooks, position, give)
        return allocator.offset is not None
    return False


def _while_there_are_devices(hooks: Table, position: int, give: Any) -> None:
    put_back: list[Any] = []

    def follow() -> None:
        if world.active_devices and not put_back:
            put_back.append(hooks.replace(position, give))
        elif put_back and not world.active_devices:
            put_back.pop()()

    world.device_listeners.append(follow)
