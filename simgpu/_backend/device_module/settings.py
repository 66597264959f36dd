"""Build information and settings of `torch.simgpu`, by the names of torch.cuda.

Most have a constant answer: there is no compiler, no asynchronous work, no cache and no graph.
"""

from __future__ import annotations

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import world

CAPABILITY = (9, 0)  # of every device

_MODES = ("default", "warn", "error")


def get_arch_list() -> list[str]:
    """The architectures that kernels exist for: that of the devices."""
    return [f"sm_{CAPABILITY[0]}{CAPABILITY[1]}"]


def get_gencode_flags() -> str:
    """The compiler flags for `get_arch_list`."""
    architecture = f"{CAPABILITY[0]}{CAPABILITY[1]}"
    return f"-gencode compute=compute_{architecture},code=sm_{architecture}"


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the devices compute in bfloat16: they do, as the CPU does."""
    return True


def is_tf32_supported() -> bool:
    """Whether float32 products may be asked for in TF32: they may, and are in float32."""
    return True


def is_current_stream_capturing() -> bool:
    """Whether the current stream records a graph: there are none."""
    return False


def get_allocator_backend() -> str:
    """The name of the allocator, which here is the device type's."""
    return DEVICE_TYPE


def caching_allocator_enable(value: bool = True) -> None:
    """Cache freed memory, or not: it never is."""


def ipc_collect() -> None:
    """Give back memory that other processes have let go of: they cannot hold any."""


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Choose what happens where a program synchronizes with a device: kept, and without effect.

    0, 1 or 2, or "default", "warn" or "error"; in force for as long as there are these devices.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            raise RuntimeError(f"debug_mode={debug_mode!r} must be one of {', '.join(_MODES)}")
        debug_mode = _MODES.index(debug_mode)
    world.device(world.current_device())
    current = world.current_world()
    assert current is not None, "there is one, or there would be no device"
    current.sync_debug_mode = debug_mode


def get_sync_debug_mode() -> int:
    """What `set_sync_debug_mode` was told last, as a number."""
    current = world.current_world()
    return 0 if current is None else current.sync_debug_mode
