"""Python source for the values of a failing example: what makes a regression test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from textwrap import indent
from typing import Any

import torch
from hypothesis.strategies import DataObject

from simgpu._testing.network import Network

PLAIN = (int, float, str, bytes, bool, type(None))


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
    """Writes values as source, and collects the imports that the source needs.

    Args:
        devices: what the fixture `devices` gives.
        module: a module that the source has in a variable `module`, since it cannot import it.
    """

    def __init__(self, devices: Sequence[torch.device] = (), module: str | None = None) -> None:
        self.devices = list(devices)
        self.module = module
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
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if type(value) is complex:  # whose repr loses signs of zeros, and has nan without quotes
            return f"complex({self._row([value.real, value.imag])})"
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
        if dataclasses.is_dataclass(kind):
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
        arguments = ", ".join(f"{name}={self.write(getattr(value, name))}" for name in names)
        if kind.__module__ == self.module:
            return f"module.{kind.__name__}({arguments})"
        self.imports.add(f"from {kind.__module__} import {kind.__name__}")
        return f"{kind.__name__}({arguments})"


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a property is defined."""

    module: str
    """What it is imported from."""
    name: str
    """Its name in the module; of a method Class.name."""
    path: str | None = None
    """Its file, relative to the folder of the suite, where the module cannot be imported."""


def regression_test(
    home: Home,
    arguments: dict[str, Any],
    fixtures: Sequence[str],
    key: str,
    schedule: str | None = None,
) -> str:
    """Return the text of a test that calls a property with these values alone.

    Args:
        arguments: what hypothesis drew, by name, and the fixture `devices` if the test has it.
        fixtures: names of the other arguments, to be had from fixtures.
        key: goes into the name of the test.
        schedule: the token of the schedule that it is called in, if it is in one.

    Raises NotReproducible where a value cannot be written as source.
    """
    devices = arguments.pop("devices", ()) if "devices" in fixtures else ()
    writer = Writer(devices, home.module if home.path else None)
    given = [f"{argument}={writer.write(value)}" for argument, value in arguments.items()]
    owner, _, name = home.name.rpartition(".")
    package, _, module = home.module.rpartition(".")
    load = ""
    if home.path:
        module = "module"
        writer.imports.add("from simgpu.strategies import load_module")
        load = f"\n\nmodule = load_module(__file__, {home.path!r})"
    else:
        writer.imports.add(f"from {package} import {module}" if package else f"import {module}")
    itself = [f"{module}.{owner}()"] if owner else []
    call = ",\n    ".join([*itself, *(f"{name}={name}" for name in fixtures), *given])
    body = f"{module}.{home.name}.hypothesis.inner_test(\n    {call},\n)\n"
    if schedule is not None:
        writer.imports.add("import simgpu")
        body = f"with simgpu.schedule(replay={schedule!r}):\n" + indent(body, " " * 4)
    return (
        "\n".join(sorted(writer.imports))
        + load
        + f"\n\n\ndef {name}_{key}({', '.join(fixtures)}):\n"
        + f'    """Found by fuzzing."""\n{indent(body, " " * 4)}'
    )
