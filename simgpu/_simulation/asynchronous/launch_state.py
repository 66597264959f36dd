"""What a kernel depends on besides its arguments, kept from its launch to when it runs.

Another thread may run it, and settings may have changed by then: which dispatch keys are active
(modes, autocast and autograd of the caller), how many threads a kernel of the host may use, on
which the last bits of a sum depend, and the global settings that kernels read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_Guard: Any = torch._C._ForceDispatchKeyGuard
_included: Any = torch._C._dispatch_tls_local_include_set
_excluded: Any = torch._C._dispatch_tls_local_exclude_set
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_Settings = tuple[int, bool, bool, torch.dtype, bool]


def no_modes() -> bool:
    """Whether PyTorch's functions can be called as they are: no mode of the user would see it."""
    return not _function_modes() and not _dispatch_modes()


def _settings() -> _Settings:
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
    )


class LaunchState:
    """The state of the thread that launches something."""

    __slots__ = ("_excluded", "_included", "_settings")

    def __init__(self) -> None:
        self._included, self._excluded = _included(), _excluded()
        self._settings = _settings()

    def call(self, function: Callable[[], None]) -> None:
        """Call `function` in this state, whichever thread does."""
        before = _settings()
        if before == self._settings:
            with _Guard(self._included, self._excluded):
                function()
            return
        with torch.inference_mode(self._settings[-1]):
            _set(self._settings)
            try:
                with _Guard(self._included, self._excluded):
                    function()
            finally:
                _set(before)


def _set(settings: _Settings) -> None:
    threads, deterministic, warn_only, dtype, _ = settings
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch._C._set_deterministic_algorithms(deterministic, warn_only=warn_only)
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
