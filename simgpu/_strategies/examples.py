"""One example of a property: what it is about, its values, its errors, how it is run again.

Also the numbers of devices and ranks that such a run is limited to, which the strategies ask for.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

Listener = Callable[[int | None, int | None, float | None], None]

_listener: Listener | None = None
_schedule_listener: Callable[[int, str], None] | None = None

# The numbers of devices and of ranks that a fuzzing run is about; empty outside of one.
_ranges: dict[str, tuple[int, int]] = {}


def tried(
    *, batch: int | None = None, devices: int | None = None, error: float | None = None
) -> None:
    """Report to `python -m simgpu fuzz` what this example is about; elsewhere, do nothing.

    Args:
        batch: the number of rows. With `devices` it is one combination, which the report's map
            counts. The strategy `batches` reports it by itself; call this function where a test
            gets its batch in another way.
        devices: the number of devices.
        error: how far a sum was from its exact value, divided by the bound it has to keep: 1 is
            just on the bound. The report shows the worst.

    Needs neither hypothesis nor a running test.
    """
    if _listener is not None:
        _listener(batch, devices, error)


def scheduled(switches: int, token: str) -> None:
    """Report to it the schedule that an example has drawn: its token, and how often it switched."""
    if _schedule_listener is not None:
        _schedule_listener(switches, token)


def set_listener(
    listener: Listener | None, schedules: Callable[[int, str], None] | None = None
) -> None:
    """Make `tried` call `listener` with its arguments, and `scheduled` the other; None ends it."""
    global _listener, _schedule_listener
    _listener, _schedule_listener = listener, schedules


def limit_devices(limits: tuple[int, int] | None, of: str = "devices") -> None:
    """Make strategies of numbers of devices (or of "ranks") stay within `limits`, if they can."""
    if limits is None:
        _ranges.pop(of, None)
    else:
        _ranges[of] = limits


def within_limits(least: int, most: int, of: str = "devices") -> tuple[int, int]:
    """Return the part of least..most that a fuzzing run is about; all of it where there is none."""
    if of not in _ranges:
        return least, most
    low, high = max(least, _ranges[of][0]), min(most, _ranges[of][1])
    return (low, high) if low <= high else (least, most)


class Drawn:
    """Takes the role of hypothesis's `data` in a regression test: gives the values in order."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)
        self._next = 0

    def draw(self, strategy: Any = None, label: str | None = None) -> Any:
        """Return the next value, whatever the strategy is."""
        if self._next == len(self.values):
            raise IndexError("the test draws more values than it did when this was recorded")
        self._next += 1
        return self.values[self._next - 1]

    def __repr__(self) -> str:
        return f"Drawn({self.values!r})"


class DrawnTensor(NamedTuple):
    """What `strategies.tensors` has drawn: values on the CPU, and their layout."""

    values: Any
    layout: str


def text_of(error: BaseException) -> str:
    """Return the text of an error, or what Python's tracebacks have in place of one that fails."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def load_module(beside: str, path: str) -> ModuleType:
    """Return a file of tests as a module, loaded once: for regression tests of its properties.

    Under `--import-mode=importlib` pytest puts no folder of tests on `sys.path`, so that one test
    file cannot import another.

    Args:
        beside: `__file__` of the caller.
        path: the file, such as "tests/test_it.py", relative to the caller's folder or to any
            folder around it.

    Raises FileNotFoundError where there is no such file.
    """
    for root in Path(beside).resolve().parents:
        if (root / path).is_file():
            return _load(root, Path(path))
    raise FileNotFoundError(f"no {path} in the folder of {beside}, or in one around it")


def _load(root: Path, path: Path) -> ModuleType:
    file = root / path
    for module in sys.modules.copy().values():
        known = getattr(module, "__file__", None)
        if isinstance(known, str) and known.endswith(path.name) and Path(known).resolve() == file:
            return module
    package = path.parent / "__init__.py"
    if path.name != "__init__.py" and (root / package).is_file():
        _load(root, package)  # what relative imports in the file start from
    parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
    spec = importlib.util.spec_from_file_location(".".join(parts), file)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def node_id(item: Any, start: str | Path) -> str:
    """Return what names `item`, a `pytest.Item`, to a pytest that is started in `start`.

    The id that pytest has for it begins at the folder of the suite's settings.
    """
    _, *parts = item.nodeid.split("::")
    return "::".join([os.path.relpath(item.path, start).replace(os.sep, "/"), *parts])
