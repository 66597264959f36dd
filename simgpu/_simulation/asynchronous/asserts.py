"""Errors of kernels, which surface later than they happen, as on CUDA.

A kernel that is queued has returned by the time it runs. What it raises then, such as an index out
of range, is what CUDA calls a device-side assert: the device is lost, and whoever waits for it is
told. The text is PyTorch's (c10/cuda/CUDAException.cpp).
"""

from __future__ import annotations

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime.error_words import found_no_room
from simgpu._simulation.failures.lost_devices import mark_lost

_ASSERT = (
    f"{DEVICE_TYPE} error: device-side assert triggered\n"
    "Search for `cudaErrorAssert' in "
    "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
    "information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def lose_by(error: Exception, index: int, stream: int, name: str) -> None:
    """Lose device `index`, whose kernel `name` has raised `error`; nothing is raised here."""
    where = f"{name} on stream {stream} of {DEVICE_TYPE}:{index}"
    if found_no_room(error):
        text = f"{DEVICE_TYPE} out of memory. This machine, which simulates it, has no room for "
        mark_lost(index, f"{text}{where}: {error}")
    else:
        mark_lost(index, f"{_ASSERT}{where} raised {type(error).__name__}: {error}")
