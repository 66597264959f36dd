"""`torch.simgpu.memory_allocated`, `memory_stats`, `memory_snapshot` and others, in bytes.

The numbers are those of a model of CUDA's caching allocator (`simgpu._core.allocator_model`),
which keeps what is freed, and by which a device is full.
"""

from __future__ import annotations

from typing import Any

from simgpu._backend.namespace import snapshots
from simgpu._backend.namespace.snapshots import memory_snapshot as memory_snapshot
from simgpu._core import world
from simgpu._core.allocator_model import KINDS, POOLS, CachingAllocator, host_memory
from simgpu._core.device import Device
from simgpu._core.world import DeviceLike
from simgpu._util.naming import export_public_names, format_bytes, visible_text


def is_initialized() -> bool:
    """Whether the process has used its devices, by a function that initializes CUDA or a tensor."""
    now = world.current_world()
    return now is not None and now.in_use() and not world.is_in_bad_fork()


def _placement(device: DeviceLike) -> CachingAllocator | None:
    """The allocator of `device`; None before CUDA is initialized, when none is asked."""
    if not is_initialized():
        return None
    return world.device(world.resolve(device)).placement()


def _to_reset(device: DeviceLike) -> Device:
    """The device whose figures begin again: the current one is there once CUDA is initialized."""
    if device is not None and not is_initialized():
        raise RuntimeError("Invalid device argument : did you call init?")
    return world.used_device(device)


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of `device` in blocks that live tensors have."""
    placement = _placement(device)
    return 0 if placement is None else placement.allocated


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that were taken at once, since the start or the last reset."""
    placement = _placement(device)
    return 0 if placement is None else placement.amounts["allocated_bytes"].peak()


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Make `max_memory_allocated` and all peaks begin again at what there is now."""
    _to_reset(device).placement().reset_peaks()


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Make the totals of `memory_stats` (allocated, freed, num_ooms) begin again at zero."""
    state = _to_reset(device)
    state.placement().reset_totals()
    state.out_of_memory_count = 0


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes of the segments that the allocator keeps of `device`, in use or not."""
    placement = _placement(device)
    return 0 if placement is None else placement.reserved


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that were kept at once."""
    placement = _placement(device)
    return 0 if placement is None else placement.amounts["reserved_bytes"].peak()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of `device`; what the allocator keeps is not free."""
    state = world.used_device(device)
    return max(0, state.capacity - state.placement().reserved), state.capacity


def empty_cache() -> None:
    """Give back the segments of all devices that nothing is in use of."""
    for device in world.active_devices:
        device.placement().release()


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Current, peak, allocated and freed amounts, by the names of torch.cuda.memory_stats.

    Empty before CUDA is initialized.
    """
    placement = _placement(device)
    if placement is None:
        return {}
    state = world.device(world.resolve(device))
    stats: dict[str, Any] = {
        f"{name}.{pool}.{kind}": getattr(amount, kind)(number)
        for name, amount in placement.amounts.items()
        for number, pool in enumerate((*POOLS, "all"))
        for kind in KINDS
    }
    for name in ("oversize_allocations", "oversize_segments"):
        stats |= {f"{name}.{kind}": 0 for kind in KINDS}
    stats["max_split_size"] = -1
    stats["num_ooms"] = state.out_of_memory_count
    stats["num_alloc_retries"] = placement.retries
    stats["num_device_alloc"] = placement.device_allocs
    stats["num_device_free"] = placement.device_frees
    stats["num_sync_all_streams"] = placement.syncs
    stats["num_oom_rejections"] = 0  # of a policy that is off unless a setting asks for it
    return dict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """`memory_stats` as nested dictionaries, a level for each part of its dotted names."""
    return _nested(memory_stats(device))


def _nested(stats: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, amount in stats.items():
        *path, last = name.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = amount
    return nested


_REQUESTS, _BYTES = ("allocations", "active_requests"), ("allocated_bytes", "active_bytes")


def host_memory_stats() -> dict[str, Any]:
    """Amounts of pinned memory, by the names of torch.cuda.host_memory_stats.

    Nothing is kept of what is freed, and no time is taken. Empty before CUDA is initialized.
    """
    if not is_initialized():
        return {}
    host_memory.follow()
    stats: dict[str, Any] = {}
    for kind in KINDS:
        for what, names in (("requests", _REQUESTS), ("bytes", _BYTES)):
            amount = getattr(host_memory.amounts[what], kind)()
            stats |= {f"{name}.{kind}": amount for name in names}
    for name, kind in (("alloc", "allocated"), ("free", "freed")):
        count = stats[f"num_host_{name}"] = stats[f"allocations.{kind}"]
        times = dict.fromkeys(("total", "max", "min", "avg"), 0) | {"count": count}
        stats |= {f"host_{name}_time.{key}": value for key, value in times.items()}
    return dict(sorted(stats.items()))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """`host_memory_stats` as nested dictionaries."""
    return _nested(host_memory_stats())


def reset_peak_host_memory_stats() -> None:
    """Make the peaks of `host_memory_stats` begin again at what there is now."""
    host_memory.follow()
    for amount in host_memory.amounts.values():
        amount.reset_peak()


def reset_accumulated_host_memory_stats() -> None:
    """Make the totals of `host_memory_stats` begin again at zero."""
    host_memory.follow()
    for amount in host_memory.amounts.values():
        amount.reset_totals()


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """`memory_stats` as a table for people."""
    state = world.used_device(device)
    stats = memory_stats(device)
    lines = [
        visible_text(f"{state.torch_device} memory, of {format_bytes(state.capacity)}"),
        f"{'':<18}{'current':>14}{'peak':>14}{'allocated':>14}{'freed':>14}",
    ]
    for name, show in (
        ("allocated_bytes", format_bytes),
        ("reserved_bytes", format_bytes),
        ("allocation", str),
    ):
        row = [show(stats[f"{name}.all.{kind}"]) for kind in KINDS]
        lines.append(f"{name:<18}" + "".join(f"{cell:>14}" for cell in row))
    lines.append(f"{'out of memory':<18}{stats['num_ooms']:>14}")
    return "\n".join(lines)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Make tensors take no more than this fraction (0 to 1) of the device's memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    state = world.used_device(device)
    state.limit_to(int(state.capacity * fraction))


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The fraction (0 to 1) of the device's memory that tensors may take."""
    state = world.used_device(device)
    return state.limit / state.capacity


export_public_names(globals(), snapshots.__name__)
