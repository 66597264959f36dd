"""`DeviceGenerator`, which `torch.Generator(device="simgpu:1")` returns.

For C++ it is a CPU generator whose device is overwritten with "simgpu:1"
(`simgpu._native.layouts`), so that CPU operators refuse it with PyTorch's own error. The device's
kernels draw from its `host`: a stream of CUDA's numbers (`simgpu._random.generator_state`), or with
`rng="host"` another CPU generator. The generators that devices draw from by default are in
`simgpu._core.device_generator`.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any

import torch

from simgpu._core import captures, world
from simgpu._core.device_generator import user_generators
from simgpu._native.layouts import label_generator
from simgpu._random.generator_state import Stream
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import ClassProxy, Patches, Table, copy_identity
from simgpu.errors import UnsupportedError

if TYPE_CHECKING:
    from simgpu._core.device import Device

PATCHES = Table()

_Stock: Any = torch._C.Generator


class DeviceGenerator(_Stock):  # type: ignore[misc]
    """A generator for tensors of a simulated device.

    As on CUDA, and unlike the devices' own generators, two of them that are given one seed draw
    the same numbers, whatever their devices.
    """

    _device: torch.device
    _host: Any

    def __new__(cls, device: torch.device, host: Any = None) -> Any:
        self = _Stock.__new__(cls)
        self._device = device
        self._host = _fresh() if host is None else host
        user_generators[self._cdata] = self
        label_generator(self, device)
        return self

    def __init__(self, device: torch.device, host: Any = None) -> None:
        """Nothing: a generator is complete after __new__."""

    def __repr__(self) -> str:
        return f"<torch._C.Generator object at {id(self):#x}>"

    @property
    def host(self) -> Any:
        """What kernels draw from for it."""
        return self._host

    def _draw_from(self, host: Any) -> None:
        self._host = host

    @property
    def device(self) -> torch.device:
        return self._device

    def manual_seed(self, seed: int) -> DeviceGenerator:
        """Restart the stream from `seed`."""
        captures.manual_seed(self.host, seed)
        return self

    def initial_seed(self) -> int:
        """The seed that was last set."""
        return self.host.initial_seed()  # type: ignore[no-any-return]

    def seed(self) -> int:
        """Restart the stream from a seed drawn from the operating system, and return the seed."""
        return captures.seed(self.host)

    def get_state(self) -> torch.Tensor:
        """Where the stream is: a CPU uint8 tensor for `set_state`.

        In a capture the offset is how far it has been drawn there, as on CUDA.
        """
        return captures.get_state(self.host)

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        """Put the stream where `get_state` found it; in a capture, also in every replay."""
        captures.set_state(self.host, new_state)
        return self

    def clone_state(self) -> DeviceGenerator:
        """A generator of the same device that will draw the same numbers."""
        captures.check_not_capturing("Cannot call CUDAGeneratorImpl::clone_impl")
        return DeviceGenerator(self._device, self.host.clone_state())

    def graphsafe_get_state(self) -> DeviceGenerator:
        """A generator that shares this one's stream, also when this one draws from another."""
        return DeviceGenerator(self._device, self.host)

    def graphsafe_set_state(self, state: torch.Generator) -> DeviceGenerator:
        """Share the stream of `state` from now on: what is drawn from one moves both on.

        As on CUDA, `state` may be of another device of that type. Raises TypeError or RuntimeError
        for what is no generator of one.
        """
        if not isinstance(state, _Stock):
            raise TypeError(f"expected a Generator, but got {type(state).__name__}")
        if not isinstance(state, DeviceGenerator):
            raise RuntimeError(
                f"Expected a {self._device.type} generator, and got one of {state.device}"
            )
        self._draw_from(state.host)
        return self

    def get_offset(self) -> int:
        """How far the stream's numbers have been drawn: a multiple of 4."""
        captures.check_not_capturing("Cannot call CUDAGeneratorImpl::get_offset")
        return self._stream().get_offset()

    def set_offset(self, offset: int) -> DeviceGenerator:
        """Go on from `offset`, a multiple of 4."""
        captures.check_not_capturing("Cannot call CUDAGeneratorImpl::set_offset")
        self._stream().set_offset(offset)
        return self

    def _stream(self) -> Stream:
        if not isinstance(self.host, Stream):
            raise UnsupportedError(
                f'a generator of {self._device} has no offset with rng="host": keep its place by '
                "get_state and set_state"
            )
        return self.host

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (str(self._device), self.get_state())


class DefaultGenerator(DeviceGenerator):
    """The generator that a device draws from by default: they always have one stream."""

    _of: Device

    def __new__(cls, device: Device) -> Any:
        self = super().__new__(cls, device.torch_device, device.generator)
        self._of = device
        return self

    def __init__(self, device: Device) -> None:
        """Nothing: a generator is complete after __new__."""

    @property
    def host(self) -> Any:
        return self._of.generator

    def _draw_from(self, host: Any) -> None:
        self._of.generator = host


def _fresh() -> Any:
    """A generator for the kernels of the devices that exist now."""
    here = world.current_world()
    return _Stock() if here is not None and here.rng == "host" else Stream()


def _rebuilt(device: str, state: torch.Tensor) -> DeviceGenerator:
    generator = make(torch.device(device))
    generator.set_state(state)
    return generator


def make(device: torch.device) -> DeviceGenerator:
    """Make a generator of `device`, which may have no index and need not exist yet."""
    captures.check_not_capturing("Cannot construct a new CUDAGeneratorImpl")
    return DeviceGenerator(device)


def default_generators() -> tuple[DefaultGenerator, ...]:
    """The generators that the devices draw from by default, by index.

    In a forked child, which may not use the devices, they only report their device.
    """
    here = world.current_world()
    return () if here is None else tuple(map(DefaultGenerator, here.devices))


# Make `torch.Generator(device="simgpu:1")` be a `simgpu._backend.generators.DeviceGenerator`.


class _GeneratorType(ClassProxy, type(_Stock)):  # type: ignore[misc]
    """A metaclass of its own, since `torch._C.Generator` has one already."""


@PATCHES.replace(
    "torch.Generator", why="C++ makes generators for the device types that PyTorch comes with"
)
class Generator(_Stock, metaclass=_GeneratorType):  # type: ignore[misc]
    """The proxy of `torch.Generator`: makes generators of simulated devices too."""

    _stock = _Stock

    def __new__(cls, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        if wanted.type == DEVICE_TYPE:
            return make(wanted)
        return _Stock.__new__(_Stock if cls is Generator else cls, wanted)


copy_identity(Generator, _Stock)


def _reduce(generator: Any) -> Any:
    return _Stock, *generator.__reduce__()[1:]


@PATCHES.action(
    "`copyreg.pickle`: the reducer of generators of the CPU",
    why="PyTorch's reducer names torch.Generator, now a proxy that pickle cannot find",
)
def _register_reducer(_: Patches) -> None:
    copyreg.pickle(_Stock, _reduce)
