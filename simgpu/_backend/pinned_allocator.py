"""`torch.empty(..., pin_memory=True)`: the allocator of pinned memory that C++ asks the hooks for.

In releases and builds where the hooks' table of virtual functions cannot be replaced, or none of
its functions turns out to be the one that returns the allocator, such calls raise as before.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from simgpu._native.callbacks import address_answer
from simgpu._native.host_allocator import SEARCHED, allocator
from simgpu._native.virtual_tables import Table
from simgpu._runtime import instruments
from simgpu._runtime.host_operators import empty
from simgpu._runtime.instruments import Instrument
from simgpu._runtime.launch import HOST_KEYS


def let_hooks_allocate(hooks: Table) -> None:
    """Let tensors be made in pinned memory while there are devices, if they can.

    Which virtual function returns the allocator is found by trying: each in turn is made to return
    ours, a pinned tensor is asked for, and its storage shows whose memory it got. Where CUDA is
    there, C++ takes pinned memory from CUDA without asking, and would start it.
    """
    if torch.cuda.is_available() or not allocator.copy():
        return
    give = address_answer(allocator.address)
    options: dict[str, Any] = {"device": torch.device("cpu"), "pin_memory": True}
    for position in range(2, SEARCHED):  # the first two destroy the object
        put_back = hooks.replace(position, give)
        try:
            made = empty(HOST_KEYS, (1,), **options)
        except RuntimeError:  # the stock function was asked, and has no allocator
            continue
        finally:
            put_back()
        allocator.offset = allocator.place_in(made.untyped_storage())
        if allocator.offset is not None:
            instruments.add(_AnswerWhileThereAreDevices(hooks, position, give))
        return


class _AnswerWhileThereAreDevices(Instrument):
    """Lets the hooks return our allocator from when devices are created until they are removed."""

    def __init__(self, hooks: Table, position: int, give: Any) -> None:
        self._replace = functools.partial(hooks.replace, position, give)
        self._put_back: Any = None

    def devices_created(self, devices: Sequence[torch.device]) -> None:
        if self._put_back is None:
            self._put_back = self._replace()

    def devices_removed(self) -> None:
        if self._put_back is not None:
            self._put_back()
            self._put_back = None
