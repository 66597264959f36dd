"""Streams that another library made: known by their handles, used as any other stream is."""

from __future__ import annotations

from typing import Any

import torch

from simgpu._runtime.streams import Stream


class ExternalStream(Stream):
    """A stream that another library made (torch.cuda.ExternalStream), by its handle.

    Args: `stream_ptr`, which `cuda_stream` says of itself; `device` as for a Stream.
    """

    _handle: int

    def __new__(
        cls, stream_ptr: int, device: torch.device | str | int | None = None, **_: Any
    ) -> ExternalStream:
        # The lower half is the number of a stream that was made here (`handle_of`).
        self = super().__new__(cls, device, stream_id=stream_ptr & 0xFFFFFFFF)
        assert isinstance(self, ExternalStream), "made of this class"
        self._handle = stream_ptr
        return self

    def __init__(self, stream_ptr: int, device: Any = None, **_: Any) -> None:
        super().__init__(device)

    @property
    def cuda_stream(self) -> int:
        """The handle that the other library gave."""
        return self._handle


def get_stream_from_external(
    data_ptr: int, device: torch.device | str | int | None = None
) -> Stream:
    """The stream of `device` with this handle, which another library made."""
    return ExternalStream(data_ptr, device)
