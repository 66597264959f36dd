"""What of a thread's state the replicas' threads take over from the caller.

Grad mode and inference mode, autocast with its dtype and cache flag, torch function modes (the
default-device context is one), dispatch modes, and context variables. Saved-tensor hooks stay
behind, as in torch.nn.parallel. The current device and stream are each replica's own
and set in `parallel_apply`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as _push_dispatch_mode


class ThreadState:
    """The state of the thread that makes it, to be entered in another one."""

    __slots__ = ("autocasts", "cache_enabled", "dispatch_modes", "function_modes", "grad",
                 "inference", "plain")  # fmt: skip

    def __init__(self, device_types: Iterable[str]) -> None:
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.autocasts = [
            (device_type, torch.get_autocast_dtype(device_type))
            for device_type in {*device_types, "cpu"}
            if torch.is_autocast_enabled(device_type)
        ]
        self.cache_enabled = torch.is_autocast_cache_enabled()
        self.function_modes = [
            _get_function_stack_at(i) for i in range(_len_torch_function_stack())
        ]
        self.dispatch_modes = _get_current_dispatch_mode_stack()
        self.plain = not (
            self.inference or self.autocasts or self.function_modes or self.dispatch_modes
        )

    def run(self, context: contextvars.Context, call: Callable[[], Any]) -> Any:
        """Call within this state and `context`, in a thread that is otherwise fresh."""
        if self.plain:
            torch.set_grad_enabled(self.grad)
            try:
                return context.run(call)
            finally:
                torch.set_grad_enabled(True)
        with contextlib.ExitStack() as stack:
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device_type, dtype in self.autocasts:
                stack.enter_context(
                    torch.autocast(device_type, dtype, cache_enabled=self.cache_enabled)
                )
            for mode in self.dispatch_modes:
                _push_dispatch_mode(mode)
                stack.callback(_pop_dispatch_mode, getattr(mode, "_mode_key", None))
            for mode in self.function_modes:
                _push_on_torch_function_stack(mode)
                stack.callback(_pop_torch_function_stack)
            return context.run(call)


def thread_is_fresh(device_types: Iterable[str]) -> bool:
    """Whether the calling thread carries none of the state above (grad mode aside)."""
    return not (
        torch.is_inference_mode_enabled()
        or _len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or any(torch.is_autocast_enabled(device_type) for device_type in {*device_types, "cpu"})
    )
