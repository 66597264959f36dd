"""What seeds and states of generators are while a graph is captured (torch.cuda.CUDAGraph).

A graph draws from where the generator is at each replay. So as on CUDA there is no new seed in a
capture, and an offset is how far the generator has been drawn within the graph: to set it, as
`torch.utils.checkpoint` does to draw a mask again, is part of what is replayed. Outside of captures
these functions are the methods of the generator. (ATen/cuda/CUDAGeneratorImpl.cpp)
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._random.stream import Stream
from simgpu._runtime.captures import Capture, of_current_stream
from simgpu.errors import CaptureError

_Stock: Any = torch._C.Generator


def check_not_capturing(attempt: str) -> None:
    """Raise for what CUDA's generators do not do while the current stream is captured."""
    if of_current_stream() is not None:
        raise CaptureError(
            f"{attempt} during CUDA graph capture. If you need this call to be captured, please "
            "file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
        )


def manual_seed(generator: Any, seed: int) -> None:
    """Restart `generator` from `seed`; in a capture there is no other."""
    if of_current_stream() is None:
        generator.manual_seed(seed)
    else:
        _check_same_seed(generator, _Stock().manual_seed(seed).initial_seed())


def seed(generator: Any) -> int:
    """Restart `generator` from a seed drawn from the operating system, and return the seed."""
    check_not_capturing("Cannot call CUDAGeneratorImpl::seed")
    return generator.seed()  # type: ignore[no-any-return]


def get_state(generator: Any) -> torch.Tensor:
    """Where `generator` is; in a capture, how far it has been drawn there."""
    capture = _capture_of(generator)
    if capture is not None:
        generator = Stream(generator.initial_seed(), capture.drawn_from(generator))
    return generator.get_state()  # type: ignore[no-any-return]


def set_state(generator: Any, new_state: torch.Tensor) -> None:
    """Put `generator` where `get_state` said it was; in a capture, also in every replay."""
    capture = _capture_of(generator)
    if capture is None:
        generator.set_state(new_state)
        return
    told = Stream()
    told.set_state(new_state)
    _check_same_seed(generator, told.initial_seed())
    capture.go_on_at(generator, told.get_offset())


def _capture_of(generator: Any) -> Capture | None:
    return of_current_stream() if isinstance(generator, Stream) else None


def _check_same_seed(generator: Any, seed: int) -> None:
    if generator.initial_seed() != seed:
        raise CaptureError(
            "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new "
            "seed is the same as the original seed."
        )
