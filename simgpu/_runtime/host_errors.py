"""Errors of the host's kernels, raised as the device would: its memory is full, its kernel's name.

A kernel of the CPU that has no room, or was not compiled for a dtype, speaks of the CPU. A program
that runs on a device would look for the mistake in the wrong place.
"""

from __future__ import annotations

import re

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import world
from simgpu._runtime.error_words import found_no_room
from simgpu._runtime.out_of_memory import raise_out_of_memory
from simgpu.errors import OutOfMemoryError

# The kernels of CUDA have the same names but for this. Those that have others, and refuse what the
# CPU computes, are in `simgpu._kernels.dtype_rules`.
_OF_CPU = re.compile(r'"(?:(\w*?)(?:_vml)?_cpu(\w*)|add_stub)"(?= not implemented for)')
_OTHERWISE = {"median": "median_out_impl"}
_WHOLE = {'"add_stub"': '"ufunc_add_CUDA"', '"mul_cpu_reduced_float"': '"mul_cuda"'}


def _of_cuda(found: re.Match[str]) -> str:
    """What CUDA calls "kthvalue_cpu", "exp_vml_cpu" or "addcmul_cpu_out"."""
    if found[0] in _WHOLE:
        return _WHOLE[found[0]]
    head, tail = found.groups()
    name = _OTHERWISE.get(head, f"{head}_cuda{tail}")
    return f'"{name}"'


def raise_as_device(
    error: RuntimeError, index: int, route: tuple[int | None, int | None] | None
) -> None:
    """Raise `error` of a kernel for device `index` in the device's words, if it has others.

    `route` is that of a copy (`simgpu._runtime.launch.launch_copy`).
    """
    if found_no_room(error):
        _raise_out_of_memory(error, index, route)
    text = str(error)
    if isinstance(error, NotImplementedError):
        worded = _OF_CPU.sub(_of_cuda, text)
        if worded != text:
            raise NotImplementedError(worded) from None


def _raise_out_of_memory(
    error: RuntimeError, index: int, route: tuple[int | None, int | None] | None
) -> None:
    """Raise what a full device raises: the host could not allocate what the device holds.

    That is the device's own error where the device has no room for it either.
    """
    asked = re.search(r"allocate (\d+) bytes", str(error))
    for device in world.active_devices[index : index + 1]:
        on_host = route is not None and route[1] is None  # a copy to the host
        if asked and not on_host and not device.has_room(int(asked[1])):
            raise_out_of_memory(device, int(asked[1]))
    raise OutOfMemoryError(
        f"{DEVICE_TYPE} out of memory. GPU {index} is simulated in the memory of this machine, "
        f"which has no room for it: {error}"
    ) from None
