"""The generator of each simulated device, from which its kernels draw by default.

It is CUDA's (`simgpu._random.generator_state`), or with `rng="host"` one of the CPU's: a CPU
generator that knows its device, and is never the default one.

Generators that a program makes are in `simgpu._backend.generators`; kernels that draw are in
`simgpu._ops.random`; `torch.simgpu.manual_seed` is in `simgpu._backend.namespace`.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from simgpu._random.generator_state import Stream
from simgpu._util.naming import DEVICE_TYPE

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: seeds of neighbouring devices are far apart


class Generator(torch.Generator):
    """The random number generator of one simulated device with `rng="host"`: one of the CPU's.

    The same seed gives different numbers on different devices (on CUDA it gives the same), so
    that replicas do not drop out the same units.
    """

    _index: int
    _seed: int

    def __new__(cls, index: int) -> Generator:
        self = super().__new__(cls, device="cpu")  # type: ignore[call-arg]
        self._index = index
        return self

    def __init__(self, index: int) -> None:
        """Nothing: torch.Generator is complete after __new__."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(DEVICE_TYPE, self._index)

    def manual_seed(self, seed: int) -> Generator:
        """Restart the stream from `seed`, which PyTorch maps to 64 bits or refuses."""
        super().manual_seed(seed)
        mapped = super().initial_seed()
        super().manual_seed((mapped + self._index * _GOLDEN) & 0xFFFF_FFFF_FFFF_FFFF)
        self._seed = mapped
        return self

    def initial_seed(self) -> int:
        """The seed that was last set, before it was made this device's own."""
        return self._seed

    def seed(self) -> int:
        """Restart the stream from a seed drawn from the operating system, and return the seed."""
        seed = super().seed()
        self.manual_seed(seed)
        return seed


def make_generator(rng: str, index: int) -> Generator | Stream:
    """The generator of device `index`, seeded as PyTorch is.

    As on CUDA, where a seed set before the devices wake up reaches them when they do.
    """
    generator = Stream() if rng == "cuda" else Generator(index)
    return generator.manual_seed(torch.initial_seed())


# Callers' generators (`simgpu._backend.generators`) by the address of their C++ part: a kernel is
# handed that part in a Python object of its own, not the object that the caller passed.
user_generators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def check_generator(generator: Any) -> torch.Generator | Stream:
    """What a kernel draws from, given a caller's generator; raises for another type of device.

    It may be of another device of that type, as on CUDA.
    """
    known = user_generators.get(generator._cdata)
    device = generator.device if known is None else known.device
    if device.type != DEVICE_TYPE:
        raise RuntimeError(
            f"Expected a '{DEVICE_TYPE}' device type for generator but found '{device.type}'"
        )
    return generator if known is None else known.host  # type: ignore[no-any-return]
