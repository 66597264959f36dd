"""The batch column of `--summary`: bytes of tensors that modules were called with, per device.

Counted are the tensor arguments of outermost calls of modules, in every thread. A module without
parameters (a loss, an activation) is skipped, and so is a wrapper such as DataParallel: what counts
there is the calls of its replicas.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree

from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patches


class _PerThread(threading.local):
    """Whether the calling thread is inside a call that was counted."""

    inside = False


def _is_parallel_wrapper(module: torch.nn.Module) -> bool:
    return hasattr(module, "device_ids") and isinstance(
        getattr(module, "module", None), torch.nn.Module
    )


def _has_parameters(module: torch.nn.Module) -> bool:
    """Whether the module has parameters; PyTorch's replicas keep theirs elsewhere."""
    return getattr(module, "_is_replica", False) or next(module.parameters(), None) is not None


class Inputs:
    """Bytes of tensors that modules were called with, by the index of the device they lie on."""

    def __init__(self) -> None:
        self.nbytes: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, arguments: Iterable[Any]) -> None:
        """See the arguments of one call."""
        with self._lock:
            for value in _pytree.tree_leaves(tuple(arguments)):
                if isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE:
                    self.nbytes[value.get_device()] += value.numel() * value.element_size()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count within the block."""
        stock, per_thread, patches = torch.nn.Module.__call__, _PerThread(), Patches()

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if per_thread.inside or _is_parallel_wrapper(module) or not _has_parameters(module):
                return stock(module, *args, **kwargs)
            self.add((*args, *kwargs.values()))
            per_thread.inside = True
            try:
                return stock(module, *args, **kwargs)
            finally:
                per_thread.inside = False

        patches.set(torch.nn.Module, "__call__", call)
        try:
            yield
        finally:
            patches.undo()
