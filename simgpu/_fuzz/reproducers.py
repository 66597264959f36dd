"""Python source for the values of a failing example: what makes a regression test."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis.strategies import DataObject

from simgpu._testing.network import Network

PLAIN = (int, float, complex, str, bytes, bool, type(None))


class NotReproducible(Exception):
    """A value has no source that makes it again."""


class DrawRecorder:
    """`data` itself, keeping what was drawn."""

    def __init__(self, data: DataObject) -> None:
        self.data = data
        self.values: list[Any] = []

    def draw(self, strategy: Any, label: Any = None) -> Any:
        value = self.data.draw(strategy, label)
        self.values.append(value)
        return value

    def __repr__(self) -> str:
        return f"Drawn({self.values!r})"


class Writer:
    """Writes values as source, and collects the imports that the source needs."""

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices = list(devices)
        self.imports: set[str] = set()

    def write(self, value: Any) -> str:
        """Return an expression that makes `value`; a device of the fixture is `devices[i]`."""
        if isinstance(value, DrawRecorder):
            self.imports.add("from simgpu.strategies import Drawn")
            return f"Drawn({self.write(value.values)})"
        if isinstance(value, torch.device):
            if value in self.devices:
                return f"devices[{self.devices.index(value)}]"
            self.imports.add("import torch")
            return f"torch.{value!r}"
        if isinstance(value, torch.dtype):
            self.imports.add("import torch")
            return repr(value)
        if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
            return f'float("{value}")'
        if type(value) in PLAIN:
            return repr(value)
        if type(value) is dict:
            pairs = (f"{self.write(key)}: {self.write(child)}" for key, child in value.items())
            return "{" + ", ".join(pairs) + "}"
        if type(value) is list:
            return "[" + self._row(value) + "]"
        if type(value) is tuple:
            return "(" + self._row(value) + ("," if len(value) == 1 else "") + ")"
        if type(value) is range:
            return repr(value)
        return self._instance(value)

    def _row(self, values: Sequence[Any]) -> str:
        return ", ".join(self.write(child) for child in values)

    def _instance(self, value: Any) -> str:
        kind = type(value)
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value) if field.init]
        elif isinstance(value, tuple) and hasattr(kind, "_fields"):
            names = list(kind._fields)
        elif isinstance(value, Network):
            self.imports.add("from simgpu.strategies import Network")
            return repr(value)
        else:
            raise NotReproducible(f"no source is known for a {kind.__qualname__}")
        if "<" in kind.__qualname__ or "." in kind.__qualname__:
            raise NotReproducible(f"{kind.__qualname__} cannot be imported")
        self.imports.add(f"from {kind.__module__} import {kind.__name__}")
        arguments = ", ".join(f"{name}={self.write(getattr(value, name))}" for name in names)
        return f"{kind.__name__}({arguments})"


def regression_test(
    module: str, name: str, arguments: dict[str, Any], fixtures: Sequence[str], key: str
) -> str:
    """Return the text of a test that calls the property `name` with these values alone.

    Args:
        module: what the property is imported from.
        arguments: what hypothesis drew, by name.
        fixtures: names of the other arguments, to be had from fixtures.
        key: goes into the name of the test.

    Raises NotReproducible where a value cannot be written as source.
    """
    writer = Writer(arguments.pop("devices", ()) if "devices" in fixtures else ())
    given = [f"{argument}={writer.write(value)}" for argument, value in arguments.items()]
    call = ",\n        ".join([*(f"{fixture}={fixture}" for fixture in fixtures), *given])
    package, _, last = module.rpartition(".")
    writer.imports.add(f"from {package} import {last}" if package else f"import {last}")
    return (
        "\n".join(sorted(writer.imports))
        + f"\n\n\ndef {name}_{key}({', '.join(fixtures)}):\n"
        + f'    """Found by fuzzing."""\n    {last}.{name}.hypothesis.inner_test(\n'
        + f"        {call},\n    )\n"
    )
