"""`Executor`: who runs what is launched, where that is not `launch` itself, at once.

An executor is an instrument: it is in force from `instruments.add` to `instruments.remove`. While
none is, nothing is paid for the question. Of several the last one runs it all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from simgpu._runtime.instruments import Instrument, Launch, hooks

# Runs the kernel of a launch on these arguments, and lets instruments see what it has computed.
Compute = Callable[[Launch, Sequence[Any], Mapping[str, Any]], Any]


class Executor(Instrument):
    """Runs kernels and copies, now or later; derive from it."""

    _executes = True

    def run(self, launch: Launch, compute: Compute) -> Any:
        """The results of `launch`: host tensors whose values may come later, by `compute`."""
        raise NotImplementedError

    def begins(self, launch: Launch, action: Callable[[], None]) -> None:
        """Call `action` when this launch, which is about to be run or queued, comes to its turn."""
        raise NotImplementedError

    def is_done(self, awaited: torch.Stream | torch.Event) -> bool:
        """Whether all work of a stream has run, or all before an event. Never waits."""
        raise NotImplementedError

    def finish(self) -> None:
        """Run all that is to run: memory of a device is about to be used outside of `launch`."""
        raise NotImplementedError


# Takes the arguments of a call, and raises where their values are wrong.
ValueCheck = Callable[[Sequence[Any], Mapping[str, Any]], None]
# By operator, what an executor has to check before it computes.
value_checks: dict[torch._ops.OpOverload, ValueCheck] = {}


def finish() -> None:
    """Before memory of devices is used otherwise than by `launch`: let all work be done."""
    if hooks.executor is not None:
        hooks.executor.finish()


def is_done(awaited: torch.Stream | torch.Event) -> bool:
    """Whether the work of a stream, or before an event, has run: always, without an executor."""
    return hooks.executor is None or hooks.executor.is_done(awaited)
