"""What `simgpu.devices(n)` and `simgpu.as_cuda(n)` return: devices for one `with` block.

A set that is made without `with` ends where nobody expects it, or is never made at all. So this
object says so: its repr is a hint, and a warning follows when it is dropped too early.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from simgpu.errors import DeviceBlockError


class DeviceBlock(contextlib.ContextDecorator):
    """Makes devices when it is entered and ends them when it is left; to be entered once.

    Args:
        call: how the program made this object, such as "simgpu.devices(4)".
        enable: what does the same without a block, such as "simgpu.enable(4)".
        start: makes the devices, and hands over to the stack what ends them.
    """

    def __init__(
        self,
        call: str,
        enable: str,
        start: Callable[[contextlib.ExitStack], list[torch.device]],
    ) -> None:
        self._call, self._enable, self._start = call, enable, start
        self._was_used = False
        self._ends: contextlib.ExitStack | None = None  # while the block lasts

    def __enter__(self) -> list[torch.device]:
        if self._was_used:
            raise DeviceBlockError(
                f"this {self._call} was entered before, and each call makes one set of devices: "
                f"call {self._call} again"
            )
        self._was_used = True
        with contextlib.ExitStack() as stack:
            devices = self._start(stack)
            self._ends = stack.pop_all()
        return devices

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ends, self._ends = self._ends, None
        if ends is None:
            raise DeviceBlockError(f"{self._call} was left, but is not entered")
        ends.close()

    def __call__(self, function: Callable[..., Any]) -> Any:
        """As a decorator: fresh devices for every call of the function."""
        self._was_used = True
        return super().__call__(function)

    def _recreate_cm(self) -> DeviceBlock:
        return DeviceBlock(self._call, self._enable, self._start)

    def __repr__(self) -> str:
        if self._ends is not None:
            return f"<{self._call}, entered>"
        if self._was_used:
            return f"<{self._call}, over>"
        return f"<{self._call}, not entered: {self._ways_out()}>"

    def _ways_out(self) -> str:
        return f"write `with {self._call}:`, or {self._enable} to have devices without a block"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # an argument: the names of this module may be gone by then
            return
        if not self._was_used:
            said = f"{self._call} made no devices, since it was never entered: {self._ways_out()}"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        elif self._ends is not None:
            self._ends.close()
            said = f"{self._call} was dropped, which ended its devices: {self._ways_out()}"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
