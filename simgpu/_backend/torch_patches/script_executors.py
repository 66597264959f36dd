"""TorchScript keeps its default executor: the fuser of the older one refuses simulated devices.

The older executor looks for operators to fuse, and raises for each device that is neither the CPU,
nor CUDA, nor XPU (torch/csrc/jit/passes/graph_fuser.cpp). Programs for CUDA turn to it for speed;
what scripts compute is the same with both.
"""

from __future__ import annotations

from collections.abc import Callable

from simgpu._patches import Patch, Row

_asked_for_default = True


def _note(stock: Callable[[bool], bool]) -> Callable[[bool], bool]:
    global _asked_for_default
    _asked_for_default = stock(True)
    return set_profiling_executor


def set_profiling_executor(enabled: bool) -> bool:
    """Note which executor is asked for, and return whether it was the default one before."""
    global _asked_for_default
    before, _asked_for_default = _asked_for_default, bool(enabled)
    return before


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch._C",
        "_jit_set_profiling_executor",
        wrap=_note,
        why="the fuser of TorchScript's older executor raises for a device that it does not know",
    ),
)
