"""`torch.simgpu.memory_allocated`, `memory_stats` and others, as in `torch.cuda.memory`, in bytes.

The ledger rounds every allocation up to 512 bytes, as CUDA's caching allocator does. It differs
where that allocator holds on to freed memory: nothing is cached here, so reserved and allocated
memory are the same, freeing gives memory back at once, and nothing is ever fragmented.
"""

from __future__ import annotations

from typing import Any

from simgpu._naming import visible_text
from simgpu._runtime import world
from simgpu._runtime.device import Device, format_bytes
from simgpu._runtime.world import DeviceLike

_POOLS = ("all", "large_pool", "small_pool")  # there is one, which goes by the name of the large
_NEVER = ("inactive_split", "inactive_split_bytes")  # amounts of what only a cache has
_KINDS = ("current", "peak", "allocated", "freed")


def _state(device: DeviceLike) -> Device:
    return world.device(world.resolve(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of `device` taken by live tensors."""
    return _state(device).allocated


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that were taken at once, since the start or the last reset."""
    return _state(device).peak


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Let `max_memory_allocated` begin again at what is taken now."""
    state = _state(device)
    state.peak = state.allocated
    state.peak_count = state.count


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Let the totals of `memory_stats` (allocated, freed, num_ooms) begin again at zero."""
    state = _state(device)
    state.out_of_memory_count = 0
    state.collect_frees()
    state.taken_before = state.taken
    state.taken_count_before = state.taken_count
    state.freed_before = state.freed
    state.freed_count_before = state.freed_count


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes kept from the device: those of live tensors."""
    return memory_allocated(device)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that were kept at once."""
    return max_memory_allocated(device)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of `device`."""
    state = _state(device)
    return state.capacity - state.allocated, state.capacity


def empty_cache() -> None:
    """Give cached memory back: there is none, and `num_sync_all_streams` counts the call."""
    for device in world.active_devices:
        device.cache_releases += 1


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Current, peak, allocated and freed amounts, by the names of torch.cuda.memory_stats."""
    state = _state(device)
    state.collect_frees()
    amounts = {
        "allocation": (
            state.count,
            state.peak_count,
            state.taken_count - state.taken_count_before,
            state.freed_count - state.freed_count_before,
        ),
        "allocated_bytes": (
            state.allocated,
            state.peak,
            state.taken - state.taken_before,
            state.freed - state.freed_before,
        ),
    }
    amounts["active"] = amounts["segment"] = amounts["allocation"]
    amounts["active_bytes"] = amounts["reserved_bytes"] = amounts["allocated_bytes"]
    amounts["requested_bytes"] = amounts["allocated_bytes"]
    for name in _NEVER:
        amounts[name] = (0, 0, 0, 0)
    stats: dict[str, Any] = {
        f"{name}.{pool}.{kind}": 0 if pool == "small_pool" else amount
        for name, numbers in amounts.items()
        for pool in _POOLS
        for kind, amount in zip(_KINDS, numbers, strict=True)
    }
    for name in ("oversize_allocations", "oversize_segments"):
        stats |= {f"{name}.{kind}": 0 for kind in _KINDS}
    stats["max_split_size"] = -1
    stats["num_ooms"] = state.out_of_memory_count
    stats["num_alloc_retries"] = 0
    stats["num_device_alloc"] = state.taken_count
    stats["num_device_free"] = state.freed_count
    stats["num_sync_all_streams"] = state.cache_releases
    return dict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """`memory_stats` as nested dictionaries, a level for each part of its dotted names."""
    nested: dict[str, Any] = {}
    for name, amount in memory_stats(device).items():
        *path, last = name.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = amount
    return nested


def device_memory_used(device: DeviceLike = None) -> int:
    """Bytes of `device` that anyone uses: those of live tensors."""
    return memory_allocated(device)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """`memory_stats` as a table for people."""
    state, stats = _state(device), memory_stats(device)
    lines = [
        visible_text(f"{state.torch_device} memory, of {format_bytes(state.capacity)}"),
        f"{'':<18}{'current':>14}{'peak':>14}{'allocated':>14}{'freed':>14}",
    ]
    for name, show in (("allocated_bytes", format_bytes), ("allocation", str)):
        row = [show(stats[f"{name}.all.{kind}"]) for kind in _KINDS]
        lines.append(f"{name:<18}" + "".join(f"{cell:>14}" for cell in row))
    lines.append(f"{'out of memory':<18}{stats['num_ooms']:>14}")
    return "\n".join(lines)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Let tensors take no more than this fraction (0 to 1) of the device's memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    state = _state(device)
    state.limit = int(state.capacity * fraction)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The fraction (0 to 1) of the device's memory that tensors may take."""
    state = _state(device)
    return state.limit / state.capacity
