"""What the CPU's own operators do to pinned memory, seen by modes of PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Read a tensor's memory without an operator; `clone` stands for them.
_READERS = (
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
)
_READ = torch.ops.aten.clone.default

# Called with an operator, its arguments and its keyword arguments.
Touches = Callable[[Any, Any, Any], None]


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `touches` before each operator of the thread that entered it."""

    def __init__(self, touches: Touches) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._touches = touches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._touches(func, args, kwargs)
        return func(*args, **kwargs)


class _Readers(TorchFunctionMode):
    """Calls `touches` before what hands a tensor's memory to Python or to other libraries."""

    def __init__(self, touches: Touches) -> None:
        super().__init__()
        self._touches = touches

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS and args[0].is_cpu:
            self._touches(_READ, args[:1], {})
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def host_accesses(touches: Touches) -> Iterator[None]:
    """Call `touches` before all that the calling thread does to the memory of CPU tensors."""
    with _Operators(touches), _Readers(touches):
        yield
