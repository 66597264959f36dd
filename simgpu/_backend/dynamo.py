"""Mark the functions of simgpu so that torch.compile does not compile them.

After a graph break, the compiler looks at every Python function that is called until the next
graph, and device kernels are Python functions here. It would compile each kernel, for the host
tensors that the kernel works on, with warnings about what it cannot trace. So every code object of
simgpu is marked to be run by the interpreter. A program's own calls of `torch.simgpu` are still
traced, except those about streams and generators, where the graph breaks.

The marks are kept with the code objects (`torch._C._dynamo.eval_frame`), so the compiler itself
need not be imported for them, which would take a second.

May import: `_backend/namespace`, `torch`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch._C._dynamo import eval_frame

from simgpu._backend import namespace

# For a function itself; what it calls, such as a program's hooks, is compiled as ever.
_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
# And for all that it calls: what watches or delays launches calls none of the program's functions.
_SKIP_ALL = eval_frame._FrameExecStrategy(
    eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
)
_WATCHING = ("simgpu._explore.asynchronous", "simgpu._explore.races", "simgpu._clock")
_CALLING = "simgpu._explore.races.host"  # but for this, by way of modes of PyTorch
_marked_modules: set[str] = set()
_seen_classes: set[type] = set()
_imported = 0  # how many modules there were when this was last looked at

# Functions of `torch.simgpu` that the compiler cannot trace.
_GRAPH_BREAKS = (
    "current_stream",
    "default_stream",
    *(name for name in vars(namespace) if "seed" in name or "rng_state" in name),
)


def skip_own_frames() -> None:
    """Mark the functions of all modules of this package that have been imported by now."""
    global _imported
    imported, _imported = _imported, len(sys.modules)
    if imported == _imported:
        return
    for name in _GRAPH_BREAKS:  # the mark that `torch.compiler.disable` leaves
        getattr(namespace, name)._torchdynamo_disable = True
    for name, module in sys.modules.copy().items():
        if _is_ours(name) and name not in _marked_modules:
            _marked_modules.add(name)
            calls_none = name.startswith(_WATCHING) and not name.startswith(_CALLING)
            strategy = _SKIP_ALL if calls_none else _SKIP
            for value in vars(module).values():
                for code in _codes(value):
                    eval_frame.set_code_exec_strategy(code, strategy)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _codes(value: Any) -> Iterator[CodeType]:
    """The code of a function or class of ours, and of the functions defined within it."""
    inner: Iterable[Any] = ()
    if isinstance(value, CodeType):
        yield value
        inner = value.co_consts
    elif isinstance(value, FunctionType):
        # Its `__module__` does not show it: `functools.wraps` copies that of a stock function.
        ours = _is_ours(value.__globals__.get("__package__") or "")
        inner = (value.__code__ if ours else None, getattr(value, "__wrapped__", None))
    elif isinstance(value, type):
        inner = () if value in _seen_classes else vars(value).values()
        _seen_classes.add(value)
    elif isinstance(value, (staticmethod, classmethod, property)) or hasattr(value, "cache_info"):
        held = "__func__", "__wrapped__", "fget", "fset", "fdel"  # the second of functools.cache
        inner = [getattr(value, name, None) for name in held]
    for item in inner:
        yield from _codes(item)
