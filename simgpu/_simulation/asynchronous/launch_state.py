"""What a kernel depends on besides its arguments, kept from its launch to when it runs.

Another thread may run it, and settings may have changed by then: which dispatch keys are active
(autocast and autograd of the caller, and no modes, which may have ended by then), how many threads
a kernel of the host may use, on which the last bits of a sum depend, and the global settings that
kernels read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_Guard: Any = torch._C._ForceDispatchKeyGuard
_InferenceMode: Any = torch._C._InferenceMode
_included: Any = torch._C._dispatch_tls_local_include_set
_excluded: Any = torch._C._dispatch_tls_local_exclude_set
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


def _settings() -> _Settings:
    return _threads(), _deterministic(), _warn_only(), _dtype(), _inference()


class LaunchState:
    """The state of a thread that launches something; equal states are one object (`current`)."""

    __slots__ = ("_excluded", "_included", "_settings")

    def __init__(self, included: Any, excluded: Any, settings: _Settings) -> None:
        self._included, self._excluded, self._settings = included, excluded, settings

    def call(self, function: Callable[[], None]) -> None:
        """Call `function` in this state, whichever thread does.

        The blocks are made of C: where Ctrl-C comes in between, they end in their order. One that
        ends later, with a generator, would leave the thread the keys of a kernel.
        """
        before = _settings()
        if before == self._settings:
            with _Guard(self._included, self._excluded):
                function()
            return
        with _InferenceMode(self._settings[-1]), _Guard(self._included, self._excluded):
            try:
                _set(self._settings)
                function()
            finally:
                _set(before)


def current() -> LaunchState:
    """The state of the calling thread."""
    return _state_of(_included().raw_repr(), _excluded().raw_repr(), _settings())


@functools.cache
def _state_of(included: int, excluded: int, settings: _Settings) -> LaunchState:
    """The state with these dispatch keys, as PyTorch numbers sets of them."""
    from_number = torch._C.DispatchKeySet.from_raw_repr
    return LaunchState(from_number(included) - _MODES, from_number(excluded), settings)


def _set(settings: _Settings) -> None:
    threads, deterministic, warn_only, dtype, _ = settings
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch._C._set_deterministic_algorithms(deterministic, warn_only=warn_only)
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
