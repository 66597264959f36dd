"""The choke point: every kernel and every copy on a simulated device passes `launch`.

Observers hang here: the trace first; whatever wants to see, forbid or delay device work later.
Without an observer, `launch` only runs the kernel.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import streams, world
from simgpu.errors import OutOfMemoryError

# Straight to the CPU kernel of an operator, past autograd, modes and the choice of a backend.
HOST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CPU = torch.device("cpu")


class Kernel:
    """An operator together with the host code that computes it."""

    __slots__ = ("name", "op", "run")

    def __init__(self, op: torch._ops.OpOverload, run: Callable[..., Any] | None = None) -> None:
        self.op = op
        self.name = str(op).removeprefix("aten.").removesuffix(".default")
        # Straight to the CPU kernel: modes and functions that users installed do not see it.
        self.run: Callable[..., Any] = run or op._handle.redispatch_boxed


@dataclass(frozen=True)
class Record:
    """One kernel or copy, as observers see it.

    `nbytes` are the bytes written: of a kernel's outputs, or of what a copy moved. `source` and
    `target` differ only for copies between devices, or between a device and the host. `begin` and
    `end` are seconds of `time.perf_counter`; `allocated` are the bytes of `device` that were taken
    at the end, before the results were added.
    """

    kind: str
    op: str
    device: torch.device
    stream: int
    source: torch.device
    target: torch.device
    nbytes: int
    shapes: tuple[tuple[int, ...], ...]
    thread: str
    begin: float
    end: float
    allocated: int


class Observer(Protocol):
    """What can watch launches; called in the launching thread, after the kernel ran."""

    def __call__(self, record: Record, /) -> None:
        """See one launch."""


_observers: tuple[Observer, ...] = ()
_observers_lock = threading.Lock()


def add_observer(observer: Observer) -> None:
    """Let `observer` see every launch from now on, of every thread."""
    global _observers
    with _observers_lock:
        _observers = (*_observers, observer)


def remove_observer(observer: Observer) -> None:
    """Take `observer` away again."""
    global _observers
    with _observers_lock:
        _observers = tuple(other for other in _observers if other is not observer)


def _allow_all() -> None:
    """Every launch is allowed."""


def _see_nothing(_: Record) -> None:
    """An observer that makes launches take the path on which they ask for permission."""


_check_allowed: Callable[[], None] = _allow_all


def forbid(check: Callable[[], None]) -> None:
    """Call `check`, which may raise, before every launch, for the rest of the process.

    Takes no lock: a forked child has one thread, and no hope for a lock that another one held.
    """
    global _check_allowed, _observers
    _check_allowed = check
    _observers = (*_observers, _see_nothing)


def launch(
    kernel: Kernel,
    index: int,
    args: Iterable[Any],
    kwargs: dict[str, Any],
    route: tuple[int | None, int | None] | None = None,
) -> Any:
    """Run `kernel` for device `index` on host arguments and return its host results.

    A copy has a `route`: see `launch_copy`.
    """
    if index >= len(world.active_devices) and route is None:
        world.device(index)  # raises: a tensor has outlived its device, and can only be copied
    try:
        if not _observers:
            return kernel.run(HOST_KEYS, *args, **kwargs)
        _check_allowed()
        begin = time.perf_counter()
        result = kernel.run(HOST_KEYS, *args, **kwargs)
    except RuntimeError as error:
        _raise_if_host_is_full(error, index)
        raise
    _notify(kernel, index, route, result, begin)
    return result


def launch_copy(
    kernel: Kernel,
    source: int | None,
    target: int | None,
    args: Iterable[Any],
    kwargs: dict[str, Any],
) -> Any:
    """`launch` for a copy from device `source` to device `target`, where None is the host.

    As on CUDA, the copy is queued on the device it reads from, or on the one it writes to when it
    reads from the host.
    """
    index = target if source is None else source
    assert index is not None, "a copy from host to host is no device work"
    return launch(kernel, index, args, kwargs, (source, target))


def _raise_if_host_is_full(error: RuntimeError, index: int) -> None:
    """Raise what a full device raises, if the host could not allocate what the device holds."""
    if "DefaultCPUAllocator" in str(error):
        raise OutOfMemoryError(
            f"{DEVICE_TYPE} out of memory. GPU {index} is simulated in the memory of this machine, "
            f"which has no room for it: {error}"
        ) from None


def _notify(
    kernel: Kernel,
    index: int,
    route: tuple[int | None, int | None] | None,
    result: Any,
    begin: float,
) -> None:
    end = time.perf_counter()
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
    source, target = map(_place, route or (index, index))
    record = Record(
        kind="kernel" if route is None else "copy",
        op=kernel.name,
        device=torch.device(DEVICE_TYPE, index),
        stream=streams.current_stream_id(index),
        source=source,
        target=target,
        nbytes=sum(tensor.nbytes for tensor in tensors),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors),
        thread=threading.current_thread().name,
        begin=begin,
        end=end,
        allocated=world.active_devices[index].allocated if index < len(world.active_devices) else 0,
    )
    for observer in _observers:
        observer(record)


def _place(index: int | None) -> torch.device:
    return _CPU if index is None else torch.device(DEVICE_TYPE, index)
