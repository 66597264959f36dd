"""Take the memory of a kernel's results before it runs, where running it changes more than these.

Other results are entered in the ledger when they are there (`simgpu._memory.ownership.adopt`): a
kernel whose results find no room has then run in vain, which nobody can see. But a dropout has
moved the generator by then, and a batch norm its running statistics, while CUDA allocates first and
so leaves them alone. So the results of such kernels are computed on the meta device beforehand,
unless there is room for sure and nobody is asked before allocations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from simgpu._runtime.caching_allocator import rounded
from simgpu._runtime.device import Device
from simgpu._runtime.instruments import hooks
from simgpu._runtime.meta_kernels import call_on_meta
from simgpu._runtime.operators import written
from simgpu._runtime.out_of_memory import raise_out_of_memory


def changes_more_than_results(op: torch._ops.OpOverload) -> bool:
    """Whether `op` makes tensors, and also draws random numbers or writes to an argument."""
    if not any(returned.alias_info is None for returned in op._schema.returns):
        return False
    return torch.Tag.nondeterministic_seeded in op.tags or bool(written(op))


class Charge:
    """Bytes that are held for results to come, until they are there or will never be."""

    __slots__ = ("_device", "_op", "_sizes")

    def __init__(self, op: torch._ops.OpOverload, device: Device, sizes: Iterable[int]) -> None:
        self._op, self._device, self._sizes = op, device, list[int]()
        try:
            for nbytes in sizes:
                held = device.hold(nbytes)
                if held is None:
                    raise_out_of_memory(device, nbytes)
                self._sizes.append(held)
        except BaseException:
            self.release(())
            raise

    def release(self, results: Any) -> None:
        """Give the bytes back: the kernel's new `results`, if any, are entered next.

        Instruments are not asked about them again, unless their sizes are others than expected.
        That is noted on the memory itself: it is forgotten with it where the launch fails now.
        """
        expected = self._sizes
        self._sizes = []
        for held in reversed(expected):  # so that each finds the same block again
            self._device.release(held)
        for storage in _new_storages(self._op, results) if expected else ():
            nbytes = rounded(storage.nbytes())
            if nbytes in expected:
                expected.remove(nbytes)
                storage._simgpu_asked = hooks.before_allocate  # type: ignore[attr-defined]


def charge(
    op: torch._ops.OpOverload, device: Device, args: Iterable[Any], kwargs: dict[str, Any]
) -> Charge | None:
    """Hold the memory of what `op` will return; None where that is not needed.

    Raises OutOfMemoryError. Where PyTorch cannot tell the results beforehand, nothing is held.
    """
    if not hooks.before_allocate and _has_ample_room(device, args):
        return None
    sizes = _result_sizes(op, args, kwargs)
    return Charge(op, device, sizes) if sizes else None


def _has_ample_room(device: Device, args: Iterable[Any]) -> bool:
    """Whether there is room for whatever such a kernel could return, by a generous estimate."""
    nbytes, factor = 0, 1.0
    for value in args:
        if isinstance(value, torch.Tensor):
            nbytes += value.nbytes
        elif isinstance(value, (int, float)):
            factor *= max(value, 1)
        elif isinstance(value, (list, tuple)):  # a shape
            factor *= math.prod(max(size, 1) for size in value if isinstance(size, int))
    return device.has_ample_room(int(16 * (nbytes + 1) * factor))


def _result_sizes(
    op: torch._ops.OpOverload, args: Iterable[Any], kwargs: dict[str, Any]
) -> list[int]:
    """Bytes of each new tensor that `op` returns, rounded as in the ledger; empty if unknown."""
    try:
        results, *_ = call_on_meta(op, args, kwargs)
    except Exception:  # no meta kernel, or sizes that depend on values
        return []
    return [rounded(storage.nbytes()) for storage in _new_storages(op, results)]


def _new_storages(op: torch._ops.OpOverload, results: Any) -> list[torch.UntypedStorage]:
    """Whose memory the device takes: of the results that are no arguments, and are dense."""
    found = results if isinstance(results, (tuple, list)) else (results,)
    return [
        result.untyped_storage()
        for result, declared in zip(found, op._schema.returns, strict=False)
        if declared.alias_info is None
        and isinstance(result, torch.Tensor)
        and result.layout is torch.strided
    ]
