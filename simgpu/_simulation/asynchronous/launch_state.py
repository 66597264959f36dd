"""What a kernel depends on besides its arguments, kept from its launch to when it runs.

Another thread may run it, and settings may have changed by then: which dispatch keys are active
(autocast and autograd of the caller, and no modes, which may have ended by then), how many threads
a kernel of the host may use, on which the last bits of a sum depend, and the global settings that
kernels read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_Guard: Any = torch._C._ForceDispatchKeyGuard
_included: Any = torch._C._dispatch_tls_local_include_set
_excluded: Any = torch._C._dispatch_tls_local_exclude_set
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
# What PyTorch's functions ask, of C.
_threads: Callable[[], int] = torch.get_num_threads
_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
_warn_only: Callable[[], bool] = torch._C._get_deterministic_algorithms_warn_only
_dtype: Callable[[], torch.dtype] = torch._C.get_default_dtype
_inference: Callable[[], bool] = torch._C.is_inference_mode_enabled
# What says that the thread has modes of operators: without one, C++ refuses what it is asked for.
_MODES = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)
_Settings = tuple[int, bool, bool, torch.dtype, bool]


def no_modes() -> bool:
    """Whether PyTorch's functions can be called as they are: no mode of the user would see it."""
    return not _function_modes() and not _dispatch_modes()


def _settings() -> _Settings:
    return _threads(), _deterministic(), _warn_only(), _dtype(), _inference()


class LaunchState:
    """The state of a thread that launches something; equal states are one object (`current`)."""

    __slots__ = ("_excluded", "_included", "_settings")

    def __init__(self, included: Any, excluded: Any, settings: _Settings) -> None:
        self._included, self._excluded, self._settings = included, excluded, settings

    def call(self, function: Callable[[], None]) -> None:
        """Call `function` in this state, whichever thread does."""
        batch = _per_thread.batch
        if batch is not None:
            batch.enter(self)
            function()
        else:
            with self.in_force():
                function()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let the calling thread have this state."""
        before = _settings()
        if before == self._settings:
            with _Guard(self._included, self._excluded):
                yield
            return
        with torch.inference_mode(self._settings[-1]):
            _set(self._settings)
            try:
                with _Guard(self._included, self._excluded):
                    yield
            finally:
                _set(before)


_states: dict[tuple[Any, ...], LaunchState] = {}


def current() -> LaunchState:
    """The state of the calling thread."""
    included, excluded = _included() - _MODES, _excluded()
    key = included.raw_repr(), excluded.raw_repr(), *_settings()
    state = _states.get(key)
    if state is None:
        state = _states.setdefault(key, LaunchState(included, excluded, _settings()))
    return state


class Batch:
    """Lets kernels that run one after the other enter a state once, if it is the same for them."""

    def __init__(self) -> None:
        self._state: LaunchState | None = None
        self._entered = ExitStack()

    def __enter__(self) -> None:
        self._outer, _per_thread.batch = _per_thread.batch, self

    def enter(self, state: LaunchState) -> None:
        """Let the thread have `state` from now on."""
        if state is not self._state:
            self._state = None
            self._entered.close()
            self._entered.enter_context(state.in_force())
            self._state = state

    def __exit__(self, *exc_info: object) -> None:
        _per_thread.batch = self._outer
        self._entered.close()


class _PerThread(threading.local):
    batch: Batch | None = None


_per_thread = _PerThread()


def _set(settings: _Settings) -> None:
    threads, deterministic, warn_only, dtype, _ = settings
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch._C._set_deterministic_algorithms(deterministic, warn_only=warn_only)
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
