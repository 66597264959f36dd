"""`Stream`: the state of CUDA's generator, a seed and how far its numbers have been drawn.

As on CUDA, every device has a stream of its own; `torch.manual_seed` gives all of them the same
seed, so that they draw the same numbers, each for itself. A kernel takes the place where the stream
is and moves it on by what its threads may draw, in steps of 4.
"""

from __future__ import annotations

import struct
import threading
from numbers import Integral
from typing import Any

import torch

from simgpu._random.philox import Ahead

_STATE = struct.Struct("<Qq")  # what CUDA's state is made of: seed, offset
_WORD = 2**64
DEFAULT_SEED = 67280421310721  # c10::detail's default_rng_seed_val

_Stock: Any = torch._C.Generator


class Stream:
    """A seed and an offset, with the names that `torch.Generator` has for them."""

    __slots__ = ("_lock", "_offset", "_seed", "ahead")

    def __init__(self, seed: int = DEFAULT_SEED, offset: int = 0) -> None:
        self._seed, self._offset = seed, offset
        self._lock = threading.Lock()
        self.ahead = Ahead()

    def take(self, increment: int) -> tuple[int, int]:
        """The seed and the place (offset / 4) to draw from; moves on by `increment` or a bit more.

        As on CUDA, the offset stays a multiple of 4.
        """
        with self._lock:
            place = self._offset >> 2
            self._offset = (self._offset + (increment + 3 & -4)) % _WORD
            return self._seed, place

    def manual_seed(self, seed: int) -> Stream:
        """Restart the stream from `seed`, which PyTorch maps to 64 bits or refuses."""
        mapped: int = _Stock().manual_seed(seed).initial_seed()
        with self._lock:
            self._seed, self._offset = mapped, 0
        return self

    def initial_seed(self) -> int:
        """The seed that was last set."""
        return self._seed

    def seed(self) -> int:
        """Restart the stream from a seed drawn from the operating system, and return the seed."""
        self.manual_seed(_Stock().seed())
        return self._seed

    def get_offset(self) -> int:
        """How far the numbers have been drawn: a multiple of 4."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Go on from `offset`; raises TypeError or RuntimeError unless it is a multiple of 4."""
        if not isinstance(offset, Integral) or isinstance(offset, bool):
            raise TypeError(f"offset must be an int, got {offset!r}")
        if not 0 <= offset < _WORD:
            raise RuntimeError(f"offset must be from 0 to {_WORD - 1}, got {offset}")
        if offset % 4:
            raise RuntimeError(f"offset must be a multiple of 4, got {offset}")
        with self._lock:
            self._offset = int(offset)

    def get_state(self) -> torch.Tensor:
        """Seed and offset as a CPU uint8 tensor of 16 bytes, laid out as CUDA's."""
        with self._lock:
            seed, offset = self._seed, self._offset
        state = bytearray(_STATE.pack(seed, offset - (_WORD if offset >= _WORD // 2 else 0)))
        with torch._C.DisableTorchFunction():
            return torch.frombuffer(state, dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> None:
        """Take over what `get_state` gave; as on CUDA, 8 bytes are only a seed."""
        if not isinstance(new_state, torch.Tensor):
            raise TypeError(f"expected a torch.ByteTensor, but got {type(new_state).__name__}")
        strided = new_state.layout is torch.strided
        if not (strided and new_state.dtype is torch.uint8 and new_state.is_cpu):
            raise TypeError(f"RNG state must be a torch.ByteTensor, got {new_state.type()}")
        if not new_state.is_contiguous():
            raise RuntimeError(
                f"RNG state must be contiguous, got strides {new_state.stride()}: say .contiguous()"
            )
        size = new_state.numel()
        if size not in (8, _STATE.size):
            raise RuntimeError(
                f"RNG state is wrong size: a simulated device's has {_STATE.size} bytes as on "
                f"CUDA, got {size}"
            )
        # CUDA reads memory, of which modes, such as that of fake tensors, do not see.
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            state = bytes(new_state.reshape(-1).tolist())
        seed, offset = _STATE.unpack(state + bytes(_STATE.size - size))
        self.set_offset(offset % _WORD)
        with self._lock:
            self._seed = seed

    def clone_state(self) -> Stream:
        """Another stream that will draw the same numbers."""
        return Stream(self._seed, self._offset)
