"""`simgpu.trace()`: a list with a `Record` of every kernel and every copy, in order.

`simgpu._core.launch` makes the records. `simgpu run --trace FILE` is in `timeline`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from simgpu._core import hooks
from simgpu._core.hooks import Instrument, Launch, Record
from simgpu._util import naming
from simgpu._util.naming import DEVICE_TYPE


class Trace(list[Record]):
    """The launches seen so far, oldest first; a list of records with a few ways to look at it."""

    @property
    def kernels(self) -> list[Record]:
        """Work within one device, but for fresh memory (`torch.empty`), which launches nothing."""
        return [record for record in self if record.kind == "kernel"]

    @property
    def copies(self) -> list[Record]:
        """Transfers between devices, or between a device and the host."""
        return [record for record in self if record.kind == "copy"]

    def bytes_copied(
        self,
        source: torch.device | str | None = None,
        target: torch.device | str | None = None,
    ) -> int:
        """Bytes of all copies, or of those from `source` and to `target`.

        Raises:
            ValueError: a name such as "cuda" that leaves open which of several devices is meant.
        """
        from_ = None if source is None else _simulated(source)
        to = None if target is None else _simulated(target)
        return sum(
            record.nbytes
            for record in self.copies
            if from_ in (None, _simulated(record.source))
            and to in (None, _simulated(record.target))
        )


def _simulated(device: torch.device | str) -> torch.device:
    """A device by its own name, whichever name was given: no copy of a real GPU is in a trace."""
    found = torch.device(device)
    if found.type == "cpu":
        return torch.device("cpu")
    if found.index is None:
        raise ValueError(f"copies begin and end at one device, got {device!r}: use '{device}:0'")
    return torch.device(DEVICE_TYPE, found.index) if found.type == "cuda" else found


def _visible(device: torch.device) -> torch.device:
    """A device as `tensor.device` shows it to a program that uses it as CUDA."""
    return torch.device("cuda", device.index) if device.type == DEVICE_TYPE else device


class _Recorder(Instrument):
    """Appends what ran to a trace; appending to a list is atomic, so threads need no lock."""

    def __init__(self, seen: Trace) -> None:
        self._seen = seen

    def after_launch(self, launch: Launch, record: Record) -> None:
        if "cuda" in naming.names:
            record = replace(
                record,
                device=_visible(record.device),
                source=_visible(record.source),
                target=_visible(record.target),
            )
        self._seen.append(record)


@contextmanager
def trace() -> Iterator[Trace]:
    """Record every kernel, every copy and all fresh memory of all threads in the block.

    Yields a `Trace`, which stays readable afterwards. Traces may be nested.
    """
    seen = Trace()
    recorder = _Recorder(seen)
    hooks.add(recorder)
    try:
        yield seen
    finally:
        hooks.remove(recorder)
