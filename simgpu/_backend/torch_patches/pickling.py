"""Tensors in queues, pipes and arguments of processes: sent as CUDA's IPC sends them.

What is sent is shared memory (`simgpu._memory.sharing`) and the index of a device. The receiver
needs simulated devices of its own; where it has none, receiving raises.
"""

from __future__ import annotations

import multiprocessing.queues
import os
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from simgpu._memory import received
from simgpu._memory.composites import is_composite
from simgpu._memory.sharing import shared_memory_of, sharing_strategy
from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Action, Patches, Row
from simgpu.errors import UnsupportedError

_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def reduce_tensor(tensor: torch.Tensor) -> _Reduced:
    """What is sent of a tensor on a device: its storage, and what it sees of it."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a tensor that a computation with gradients made cannot be sent to another process, "
            "since autograd does not reach there: send tensor.detach()"
        )
    torch.utils.hooks.warn_if_has_hooks(tensor)
    if is_composite(tensor):
        raise UnsupportedError(
            f"a tensor of layout {tensor.layout} on {tensor.device} cannot be sent to another "
            "process: send its parts, such as indices() and values(), and make another there"
        )
    return received.rebuild_tensor, (
        isinstance(tensor, torch.nn.Parameter),
        tensor.requires_grad,
        tensor.untyped_storage(),
        tensor.dtype,
        (tensor.storage_offset(), tuple(tensor.shape), tensor.stride()),
        (tensor.is_conj(), tensor.is_neg()),
    )


def reduce_storage(storage: torch.UntypedStorage) -> _Reduced:
    """What is sent of a storage on a device: the same memory as the host's, and the index."""
    if not storage.nbytes():
        return received.rebuild_storage, (None, storage.device.index, "")
    shared = shared_memory_of(storage)
    if shared.strategy != sharing_strategy():
        # PyTorch would move the memory from under the storage.
        raise UnsupportedError(
            f"a tensor on {storage.device} that was shared by the strategy {shared.strategy!r} "
            f"cannot be sent by {sharing_strategy()!r}: call "
            "torch.multiprocessing.set_sharing_strategy before any tensor is sent"
        )
    return received.rebuild_storage, (shared.host, storage.device.index, shared.strategy)


def _send_or_raise(
    value: Any, reduce: Callable[[Any], _Reduced], stock: Callable[[Any], Any]
) -> Any:
    """Reduce a tensor or storage, by PyTorch's own function where it is on no simulated device."""
    if value.device.type != DEVICE_TYPE:
        return stock(value)
    try:
        return reduce(value)
    except Exception as error:
        if not _is_lost_when_raised():
            raise
        said = f"{error} (said by process {os.getpid()}, which put it into a queue)"
        return received.raise_error, (type(error).__name__, said)


def _is_lost_when_raised() -> bool:
    """Whether an error raised here would be printed only, while the receiver waits for ever.

    So it is in the thread that pickles what a multiprocessing.Queue was given, unless the queue's
    owner asks for errors (as concurrent.futures does).
    """
    queue: Any = multiprocessing.queues.Queue
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is queue._feed.__code__:
            return frame.f_locals.get("onerror") in (None, queue._on_queue_feeder_error)
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _register_reducers(_: Patches) -> None:
    reducers: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for stock_name, ours in (("reduce_tensor", reduce_tensor), ("reduce_storage", reduce_storage)):
        stock = getattr(reductions, stock_name)
        for kind, reduce in list(reducers.items()):
            if reduce is stock:
                ForkingPickler.register(kind, _reducer(ours, stock))


def _reducer(ours: Callable[[Any], _Reduced], stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: _send_or_raise(value, ours, stock)


PATCHES: tuple[Row, ...] = (
    Action(
        "`multiprocessing.reduction.ForkingPickler.register`: the reducers of tensors, parameters "
        "and storages",
        run=_register_reducers,
        why="memory of a simulated device is sent as shared memory of the host",
    ),
)
