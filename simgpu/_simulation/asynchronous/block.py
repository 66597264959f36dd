"""`simgpu.asynchronous`: a block in which kernels and copies run when something waits for them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from simgpu._runtime import instruments
from simgpu._runtime.world import active_devices
from simgpu._simulation.asynchronous.executor import Asynchronous


@contextmanager
def asynchronous(seed: int | None = None) -> Iterator[Asynchronous]:
    """Let kernels and copies run when something waits for them, as the streams of a GPU allow.

    Within the block each of them is queued on its stream. It runs when the host waits for it: by
    `synchronize` of its device, its stream or a later event, by `item()`, `cpu()` and other copies
    that block, and where a result's shape depends on values. Until then what it writes is NaN (-1
    or true in other dtypes). Memory that is given back is overwritten, in the order of the stream
    that it was allocated on. So code that forgets `wait_stream`, `record_stream` or `synchronize`
    computes wrong numbers.

    Args:
        seed: None runs nothing before somebody waits for it, and then no more than that needs. A
            number draws another legal order; equal seeds give equal orders, in a program whose
            threads come in the same order.

    Yields how much was queued (`deferred`, `at_once`, `pending`). The end of the block waits for
    all of it; so does the beginning of one within another, which has counts of its own. Errors of
    kernels (indices out of range) surface where something waits, as DeviceLostError in CUDA's
    words, and the device is lost from then on. ValueError for what is no seed.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ValueError(f"seed={seed!r}: a number is expected, or None for the laziest order")
    executor = begin(seed)
    try:
        yield executor
    finally:
        end(executor)
    executor.check_all()


# Of the blocks and sessions (pytest --async) that have not ended: the last one is in force. Those
# of several threads, or of ranks that take turns, may end in any order.
_open: list[Asynchronous] = []
_lock = threading.Lock()


def begin(seed: int | None) -> Asynchronous:
    """Let all launches run when something waits for them, until `end`."""
    # PyTorch's meta kernels import it when they are first asked, which is in the middle of a
    # launch: other threads wait for an import, and a schedule of threads does not know of that.
    importlib.import_module("torch._dynamo")
    with _lock:
        if _open:
            outer = _open[-1]
            executor = outer.nested(seed)
            _exchange(outer, executor)
        else:
            executor = Asynchronous(seed)
            if any(device.allocated for device in active_devices):
                executor.know_present_memory()
            instruments.add(executor)
        _open.append(executor)
    return executor


def end(executor: Asynchronous) -> None:
    """Run what is left, and let launches run as before: at once, if no other one is open."""
    with _lock:
        try:
            executor.finish()
        finally:
            was_in_force = _open[-1] is executor
            _open.remove(executor)
            if not _open:
                instruments.remove(executor)
            elif was_in_force:
                _open[-1].restart(_open[-1].seed)
                _exchange(executor, _open[-1])


def _exchange(old: Asynchronous, new: Asynchronous) -> None:
    """Let `new` go on in place of `old`, with no launch of another thread in between."""
    instruments.add(new)
    instruments.remove(old)
