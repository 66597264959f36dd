"""`strategies.tried`: where an example says what it is about, to a fuzzing run if there is one.

Also the numbers of devices and ranks that such a run is limited to, which the strategies ask for.
"""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[int | None, int | None, float | None], None]

_listener: Listener | None = None
_schedule_listener: Callable[[int, str], None] | None = None

# The numbers of devices and of ranks that a fuzzing run is about; empty outside of one.
_ranges: dict[str, tuple[int, int]] = {}


def tried(
    *, batch: int | None = None, devices: int | None = None, error: float | None = None
) -> None:
    """Tell `python -m simgpu fuzz` what this example is about; elsewhere, do nothing.

    Args:
        batch, devices: one combination, to be counted in the report's heat map. The strategy
            `batches` says this by itself; call it where a test gets its batch in another way.
        error: how far a sum was from its exact value, divided by the bound it has to keep: 1 is
            just on the bound. The report shows the worst.

    Needs neither hypothesis nor a running test.
    """
    if _listener is not None:
        _listener(batch, devices, error)


def scheduled(switches: int, token: str) -> None:
    """Tell it of the schedule that an example has drawn: its token, and how often it switched."""
    if _schedule_listener is not None:
        _schedule_listener(switches, token)


def set_listener(
    listener: Listener | None, schedules: Callable[[int, str], None] | None = None
) -> None:
    """Let `tried` call `listener` with its arguments, and `scheduled` the other; None ends that."""
    global _listener, _schedule_listener
    _listener, _schedule_listener = listener, schedules


def limit_devices(limits: tuple[int, int] | None, of: str = "devices") -> None:
    """Let strategies of numbers of devices (or of "ranks") stay within `limits`, if they can."""
    if limits is None:
        _ranges.pop(of, None)
    else:
        _ranges[of] = limits


def within_limits(least: int, most: int, of: str = "devices") -> tuple[int, int]:
    """Return the part of least..most that a fuzzing run is about; all of it where there is none."""
    if of not in _ranges:
        return least, most
    low, high = max(least, _ranges[of][0]), min(most, _ranges[of][1])
    return (low, high) if low <= high else (least, most)
