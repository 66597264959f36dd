"""The caller's thread-local state that replicas' threads take over: grad mode, autocast, modes.

Grad mode; the switches below, inference mode among them; autocast with its dtype and cache flag;
torch function modes (the default-device context is one) and dispatch modes; the levels of
`torch.func`; context variables; and two settings that a thread keeps from when it began, the number
of intra-op threads and autocast's default dtype. Saved-tensor hooks stay behind, as in
torch.nn.parallel. The current device and stream are each replica's own and set in `parallel_apply`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C import (
    DisableTorchFunctionSubclass,
    _are_functorch_transforms_active,
    _get_function_stack_at,
    _is_any_autocast_enabled,
    _is_fwd_grad_enabled,
    _is_multithreading_enabled,
    _is_torch_function_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
    _set_grad_enabled,
)
from torch._C._autograd import (  # type: ignore[attr-defined]
    _saved_tensors_hooks_is_enabled,
    _top_saved_tensors_default_hooks,
)
from torch._functorch.pyfunctorch import (
    temporarily_clear_interpreter_stack,
    temporarily_restore_interpreter_stack,
)
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as _push_dispatch_mode

# How each is read, what it is in a fresh thread, and the context that makes it the opposite.
_SWITCHES: tuple[tuple[Callable[[], bool], bool, Callable[[], Any]], ...] = (
    (torch.is_inference_mode_enabled, False, torch.inference_mode),
    (_is_fwd_grad_enabled, True, lambda: forward_ad._set_fwd_grad_enabled(False)),
    (
        _is_multithreading_enabled,
        True,
        lambda: torch.autograd.set_multithreading_enabled(False),
    ),
    (_is_torch_function_enabled, True, DisableTorchFunctionSubclass),
)
_FRESH = [fresh for _, fresh, _ in _SWITCHES]


class ThreadState:
    """The state of the thread that makes it, to be entered in another one."""

    __slots__ = ("autocasts", "cache_enabled", "dispatch_modes", "dtypes", "function_modes", "grad",
                 "levels", "plain", "switched", "threads")  # fmt: skip

    def __init__(self, device_types: Iterable[str]) -> None:
        kinds = {*device_types, "cpu"}
        self.threads = torch.get_num_threads()
        self.dtypes = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds]
        self.grad = torch.is_grad_enabled()
        self.switched = [enter for read, fresh, enter in _SWITCHES if read() is not fresh]
        self.autocasts = [each for each in self.dtypes if torch.is_autocast_enabled(each[0])]
        self.cache_enabled = torch.is_autocast_cache_enabled()
        self.function_modes = [
            _get_function_stack_at(i) for i in range(_len_torch_function_stack())
        ]
        self.dispatch_modes = _get_current_dispatch_mode_stack()
        self.levels = _transform_levels()
        self.plain = not (
            self.switched
            or self.autocasts
            or self.function_modes
            or self.dispatch_modes
            or self.levels
        )

    def run(self, context: contextvars.Context, call: Callable[[], Any]) -> Any:
        """Call within this state and `context`, in a thread that is otherwise fresh."""
        self._update_lasting_settings()
        if self.plain:
            _set_grad_enabled(self.grad)
            try:
                return context.run(call)
            finally:
                _set_grad_enabled(True)
        with contextlib.ExitStack() as stack:
            for enter in self.switched:
                stack.enter_context(enter())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device_type, dtype in self.autocasts:
                stack.enter_context(torch.autocast(device_type, dtype))
            stack.enter_context(temporarily_restore_interpreter_stack(self.levels))
            for mode in self.dispatch_modes:
                _push_dispatch_mode(mode)
                stack.callback(_pop_dispatch_mode, getattr(mode, "_mode_key", None))
            for mode in self.function_modes:
                _push_on_torch_function_stack(mode)
                stack.callback(_pop_torch_function_stack)
            return context.run(call)

    def _update_lasting_settings(self) -> None:
        """Bring the settings that this thread keeps between calls up to date."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        for kind, dtype in self.dtypes:
            if torch.get_autocast_dtype(kind) is not dtype:
                torch.set_autocast_dtype(kind, dtype)
        if torch.is_autocast_cache_enabled() is not self.cache_enabled:
            torch.set_autocast_cache_enabled(self.cache_enabled)


def _transform_levels() -> list[Any]:
    """The levels of `torch.func`, innermost first."""
    if not _are_functorch_transforms_active():
        return []
    with temporarily_clear_interpreter_stack() as levels:
        return levels


def thread_is_fresh() -> bool:
    """Whether the calling thread carries none of the state above (grad mode aside), nor hooks."""
    return [read() for read, _, _ in _SWITCHES] == _FRESH and not (
        _len_torch_function_stack()
        or _len_torch_dispatch_stack()
        or _are_functorch_transforms_active()
        or _is_any_autocast_enabled()
        or _top_saved_tensors_default_hooks(True) is not None
        or not _saved_tensors_hooks_is_enabled()
    )
