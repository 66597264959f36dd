"""Overwrite the device of a CPU `torch.Generator`, so that C++ takes it for a simulated device's.

PyTorch makes generators in C++ for the device types that it knows. One for a simulated device
(`simgpu._backend.generators`) is a CPU generator in which the word that names its device is
overwritten, so that the host's kernels refuse it in PyTorch's own words. The word is looked for,
once, in a generator made for that: it holds the CPU's bits in front of the CPU's dispatch keys, and
a device written there is the one that the generator then names. Where there is no such word,
generators go on as the CPU's; then `simgpu._runtime.random` alone tells them apart.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._native.device_bits import CPU_BITS, DEVICE_BITS, device_bits
from simgpu._native.process_memory import WORD, can_read, words

_SEARCHED = 16  # words; the device lies within the first five


@functools.cache
def _device_offset() -> int | None:
    """How many words into a generator its device is, or None."""
    scratch: Any = torch._C.Generator()
    if not can_read(scratch._cdata, WORD * (_SEARCHED + 1)):
        return None
    start = scratch._cdata >> 3
    key_set = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr()
    for at in range(_SEARCHED):
        word = words[start + at]
        here = word & DEVICE_BITS == CPU_BITS and words[start + at + 1] == key_set
        if here and _writes_device(scratch, start + at, word):
            return at
    return None


def _writes_device(scratch: Any, at: int, word: int) -> bool:
    wanted = torch.device(DEVICE_TYPE, 5)
    words[at] = word & ~DEVICE_BITS | device_bits(wanted)
    written: bool = scratch.device == wanted
    words[at] = word
    return written


def label_generator(generator: Any, device: torch.device) -> bool:
    """Let a CPU generator say that it is of `device`; the host's kernels then refuse it.

    Returns whether that was possible; if not, nothing was changed.
    """
    offset = _device_offset()
    if offset is None:
        return False
    at = (generator._cdata >> 3) + offset
    if words[at] & DEVICE_BITS != CPU_BITS:
        return False
    words[at] = words[at] & ~DEVICE_BITS | device_bits(device)
    return True


def is_active() -> bool:
    """Whether generators can be labelled with this PyTorch."""
    return _device_offset() is not None
