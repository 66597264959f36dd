"""Let `torch.Generator(device="simgpu:1")` be a `simgpu._backend.generators.DeviceGenerator`."""

from __future__ import annotations

import copyreg
from typing import Any

import torch

from simgpu._backend.generators import make
from simgpu._class_proxies import ClassProxy, copy_identity
from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Action, Patch, Row

_Stock: Any = torch._C.Generator


class _GeneratorType(ClassProxy, type(_Stock)):  # type: ignore[misc]
    """A metaclass of its own, since `torch._C.Generator` has one already."""


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


PATCHES: tuple[Row, ...] = (
    Action(
        "`copyreg.pickle`: the reducer of generators of the CPU",
        run=lambda _: copyreg.pickle(_Stock, _reduce),
        why="PyTorch's own names torch.Generator, the proxy, which pickle finds under no name",
    ),
    Patch(
        "torch",
        "Generator",
        value=Generator,
        why="C++ makes generators for the device types that PyTorch comes with",
    ),
)
