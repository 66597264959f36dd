"""`torch.Generator`: lets it make generators of simulated devices."""

from __future__ import annotations

from typing import Any

import torch

from simgpu._backend.generators import make
from simgpu._class_proxies import ClassProxy, copy_identity
from simgpu._naming import DEVICE_TYPE

_Stock: Any = torch._C.Generator


class _GeneratorType(ClassProxy, type(_Stock)):  # type: ignore[misc]
    """Generators have a type of types of their own already."""


class Generator(_Stock, metaclass=_GeneratorType):  # type: ignore[misc]
    """Stands in for `torch.Generator`, and knows simulated devices."""

    _stock = _Stock

    def __new__(cls, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        if wanted.type == DEVICE_TYPE:
            return make(wanted)
        return _Stock.__new__(_Stock if cls is Generator else cls, wanted)


copy_identity(Generator, _Stock)


def install() -> None:
    """Let `torch.Generator` know the device type."""
    torch.Generator = Generator  # type: ignore[misc]
