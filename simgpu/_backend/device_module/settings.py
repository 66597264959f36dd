"""Build information and settings of `torch.simgpu`, by the names of torch.cuda.

What concerns architectures follows from the models of the devices. Most others have a constant
answer, or are kept for whoever asks: there is no compiler, and one allocator.
"""

from __future__ import annotations

from simgpu._models.gpus import GENERIC
from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import streams, world

_MODES = ("default", "warn", "error")


def get_arch_list() -> list[str]:
    """The architectures that kernels exist for: those of the devices."""
    found = {device.model.compute_capability for device in world.active_devices}
    return [f"sm_{major}{minor}" for major, minor in sorted(found or {GENERIC.compute_capability})]


def get_gencode_flags() -> str:
    """The compiler flags for `get_arch_list`."""
    numbers = [name.removeprefix("sm_") for name in get_arch_list()]
    return " ".join(f"-gencode compute=compute_{number},code=sm_{number}" for number in numbers)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the current device computes in bfloat16; older than Ampere, only by emulation."""
    if not world.active_devices:
        return False
    capability = world.device(world.current_device()).model.compute_capability
    return including_emulation or capability >= (8, 0)


def is_tf32_supported() -> bool:
    """Whether float32 products may be asked for in TF32 (Ampere and newer); they are in float32."""
    return is_bf16_supported(including_emulation=False)


def is_current_stream_capturing() -> bool:
    """Whether work of the current stream is recorded in a graph, and not done."""
    return streams.current_stream().is_capturing()


def get_allocator_backend() -> str:
    """The name of the allocator, which here is the device type's."""
    return DEVICE_TYPE


def caching_allocator_enable(value: bool = True) -> None:
    """Cache freed memory, or not: no effect, its segments stay reserved until `empty_cache`."""


def ipc_collect() -> None:
    """Give back memory that other processes have let go of: none of it is kept for them."""


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
