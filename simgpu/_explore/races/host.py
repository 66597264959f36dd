"""What the CPU's own operators do to pinned memory, seen by modes of PyTorch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.overrides import _pop_mode as _pop_function_mode
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as _push_dispatch_mode

# Read a tensor's memory without an operator; `clone` does to it what they do.
_READERS = (
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
)
_READ = torch.ops.aten.clone.default

# What shows C++ that there are modes of operators in the thread.
_KEYS = torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot
_include: Callable[[Any, bool], None] = torch._C._dispatch_tls_set_dispatch_key_included
_is_included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included
_len_dispatch_stack: Callable[[], int] = torch._C._len_torch_dispatch_stack

# Called with an operator, its arguments and its keyword arguments, and what the program calls it.
Touches = Callable[[Any, Any, Any, str], None]


class _Stack(NamedTuple):
    """Where PyTorch keeps one kind of modes, of which a thread has the last one first."""

    modes: Callable[[], list[Any]]
    push: Callable[[Any], object]
    pop: Callable[[], Any]

    def put_on_top(self, mode: Any) -> None:
        """Make `mode` be the last one, wherever it was."""
        popped = []
        while mode in self.modes():
            popped.append(self.pop())
        for other in reversed(popped[:-1]):
            self.push(other)
        self.push(mode)


_OF_OPERATORS = _Stack(_get_current_dispatch_mode_stack, _push_dispatch_mode, _pop_dispatch_mode)
_OF_FUNCTIONS = _Stack(_get_current_function_mode_stack, _push_function_mode, _pop_function_mode)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports each operator of the thread that entered it, before it runs."""

    def __init__(self, accesses: HostAccesses) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._accesses = accesses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.").removesuffix(".default")
        return self._accesses.run(func, args, kwargs or {}, func, name)


class _Readers(TorchFunctionMode):
    """Reports calls that give a tensor's memory to Python or to other libraries, before it does."""

    def __init__(self, accesses: HostAccesses) -> None:
        super().__init__()
        self._accesses = accesses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Make the mode of operators see them, which the end of inference_mode switches off.
        if _len_dispatch_stack() and not _is_included(_KEYS[0]):
            for key in _KEYS:
                _include(key, True)
        reads = func in _READERS and args[0].is_cpu
        name = f"Tensor.{func.__name__}" if reads else ""
        return self._accesses.run(func, args, kwargs or {}, _READ if reads else None, name)


class HostAccesses:
    """Calls `touches` before all that the entering thread does to the memory of CPU tensors.

    From `begin` on, since modes of PyTorch make every operator slower; or from the start, where
    there are modes already, which ours could not be put below later.
    """

    def __init__(self, touches: Touches) -> None:
        self._touches = touches
        self._depth = 0  # how many calls run now, without the modes
        self._modes: tuple[tuple[Any, _Stack], ...] = (
            (_Operators(self), _OF_OPERATORS),
            (_Readers(self), _OF_FUNCTIONS),
        )
        self._entered = contextlib.ExitStack()
        self._is_entered = False
        self._thread = 0

    def __enter__(self) -> HostAccesses:
        self._thread = threading.get_ident()
        if self._are_there():
            self._enter()
        return self

    def begin(self) -> None:
        """Watch from now on, unless it is another thread's turn or modes are in the way just now.

        Called within an operator of a mode, it finds that mode taken away until it returns: ours
        is below it then, and is left when the block ends. Called again, it puts
        ours back, which PyTorch takes away where a backward pass ends that they were entered in.
        """
        if self._thread != threading.get_ident() or self._depth:
            return
        if self._are_there():
            return
        if not self._is_entered:
            self._enter()
        else:
            for mode, stack in self._modes:
                if mode not in stack.modes():
                    stack.push(mode)

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any, op: Any, name: str) -> Any:
        """Call a function in whose place a mode was called, and report it before as `op`, if any.

        An operator of the name that the program has for it.
        """
        if op is not None:
            self._touches(op, args, kwargs, name)
        self._depth += 1
        try:
            return func(*args, **kwargs)
        finally:
            self._depth -= 1

    def _enter(self) -> None:
        self._is_entered = True
        for mode, _ in self._modes:
            self._entered.enter_context(mode)

    def _are_there(self) -> bool:
        return any(stack.modes() for _, stack in self._modes)

    def __exit__(self, *exc_info: object) -> None:
        self._thread = 0
        if self._is_entered:
            # What is left is the last mode: that may be one of an outer block, which was taken
            # away when ours were entered.
            for mode, stack in self._modes:
                stack.put_on_top(mode)
        self._entered.close()
