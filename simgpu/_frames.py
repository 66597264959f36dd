"""Frames that torch.compile leaves alone: those of this package.

After a graph break, PyTorch's compiler looks at every Python function that is called until the next
graph, and device kernels are Python functions here. It would compile kernel by kernel, for other
tensors than the program's, with warnings about what it cannot trace. So the interpreter is told to
run these functions as they are. A program's own calls of `torch.simgpu` are still traced.

The compiler need not be loaded for that, which would take a second: what it keeps about a function
is kept with the function's code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch._C._dynamo import eval_frame

# The functions that these call, such as a program's hooks, are compiled as ever.
_AS_IT_IS = eval_frame._FrameExecStrategy(
    eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
)
_done: set[str] = set()


def leave_alone() -> None:
    """Tell the compiler about all modules of this package that have been imported by now."""
    package = __name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package and name not in _done:
            _done.add(name)
            for value in vars(module).values():
                for code in _codes(value, name):
                    eval_frame.set_code_exec_strategy(code, _AS_IT_IS)


def _codes(value: Any, module: str) -> Iterator[CodeType]:
    """The code of a function or class of `module`, and of the functions defined within it."""
    if isinstance(value, CodeType):
        yield value
        inner: Any = value.co_consts
    elif isinstance(value, FunctionType):
        function: Any = inspect.unwrap(value)
        inner = (function.__code__,) if function.__module__ == module else ()
    elif isinstance(value, type):
        inner = vars(value).values() if value.__module__ == module else ()
    elif isinstance(value, (staticmethod, classmethod)):
        inner = (value.__func__,)
    elif isinstance(value, property):
        inner = (value.fget, value.fset, value.fdel)
    else:
        inner = ()
    for item in inner:
        yield from _codes(item, module)
