"""Frames that torch.compile leaves alone: those of this package.

After a graph break, PyTorch's compiler looks at every Python function that is called until the next
graph, and device kernels are Python functions here. It would compile kernel by kernel, for other
tensors than the program's, with warnings about what it cannot trace. So the interpreter is told to
run these functions as they are. A program's own calls of `torch.simgpu` are still traced, all but
those about streams and generators, which the compiler cannot follow: the graph breaks there.

The compiler need not be loaded for that, which would take a second: what it keeps about a function
is kept with the function's code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch._C._dynamo import eval_frame

from simgpu._backend import device_module

# The functions that these call, such as a program's hooks, are compiled as ever.
_AS_IT_IS = eval_frame._FrameExecStrategy(
    eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
)
_done: set[str] = set()
_classes: set[type] = set()

_NOT_TRACED = (
    "current_stream",
    "default_stream",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
)


def skip_own_frames() -> None:
    """Tell the compiler about all modules of this package that have been imported by now."""
    for name in _NOT_TRACED:  # the mark that `torch.compiler.disable` leaves
        getattr(device_module, name)._torchdynamo_disable = True
    for name, module in list(sys.modules.items()):
        if _is_ours(name) and name not in _done:
            _done.add(name)
            for value in vars(module).values():
                for code in _codes(value):
                    eval_frame.set_code_exec_strategy(code, _AS_IT_IS)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _codes(value: Any) -> Iterator[CodeType]:
    """The code of a function or class of ours, and of the functions defined within it."""
    inner: Iterable[Any] = ()
    if isinstance(value, CodeType):
        yield value
        inner = value.co_consts
    elif isinstance(value, FunctionType):
        # Its `__module__`, like that of a class, may be the one of what it stands for.
        ours = _is_ours(value.__globals__.get("__name__", ""))
        inner = (value.__code__ if ours else None, getattr(value, "__wrapped__", None))
    elif isinstance(value, type):
        inner = () if value in _classes else vars(value).values()
        _classes.add(value)
    elif isinstance(value, (staticmethod, classmethod)):
        inner = (value.__func__,)
    elif isinstance(value, property):
        inner = (value.fget, value.fset, value.fdel)
    for item in inner:
        yield from _codes(item)
