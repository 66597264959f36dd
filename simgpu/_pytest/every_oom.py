"""`@pytest.mark.every_oom` and `pytest --faults oom`: a test runs once more for each allocation.

In each of these runs another allocation of simulated memory fails. The test has to let that error
out, as it is or as the cause of another one (`raise ... from error`), or to go on; what it may not
do is raise something else, or leave more memory taken than a run without a failure leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from simgpu._pytest.marker import closest_of_ours, tell_wrong
from simgpu._pytest.wrapping import wrap_test

DESCRIPTION = (
    "every_oom: the test runs once more for each allocation of simulated memory in it, which fails "
    "that time; it has to let OutOfMemoryError out, or go on, and to leave no memory taken."
)


def repeat_if_wanted(item: pytest.Item, everywhere: bool) -> None:
    """Let a test function run with every failure, if its marker or the session asks for it."""
    if not isinstance(item, pytest.Function):
        return
    marker = closest_of_ours(item, DESCRIPTION)
    if marker is not None and (marker.args or marker.kwargs):
        tell_wrong(item, marker, "write @pytest.mark.every_oom, which takes no arguments")
    if not everywhere and marker is None:
        return
    wrap_test(item, "--faults" if everywhere else "@pytest.mark.every_oom", _with_every_failure)


def _with_every_failure(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        import simgpu

        with simgpu.faults() as counted:
            test(*args, **kwargs)
        taken = _taken()
        for number in range(counted.allocations):
            _run_with_failure(number, functools.partial(test, *args, **kwargs), taken)

    return run


def _run_with_failure(number: int, run: Callable[[], Any], taken: list[int]) -> None:
    """One run in which allocation `number` fails; `taken` are the bytes of one without failure."""
    import simgpu
    from simgpu.errors import OutOfMemoryError

    with simgpu.faults(oom_at=number) as injected:
        try:
            run()
        except (Exception, pytest.fail.Exception) as error:
            if not injected.passed_on(error, OutOfMemoryError):
                if not injected.fired or isinstance(error, OutOfMemoryError):
                    raise
                pytest.fail(f"with {injected.fired[0]}, the test raised {error!r}")
    for index, (now, before) in enumerate(zip(_taken(), taken, strict=False)):
        if now > before:
            place = injected.fired[0] if injected.fired else "no failure"
            pytest.fail(f"with {place}, {now - before} bytes stay taken on device {index}")


def _taken() -> list[int]:
    from simgpu._runtime.world import active_devices

    return [device.allocated for device in active_devices]
