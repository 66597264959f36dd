"""Failures that a fuzzing run found: the smallest example of each, and a file that repeats it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from textwrap import indent
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis.strategies import DataObject

from simgpu._fuzz.tally import Failure
from simgpu._strategies.examples import DrawnTensor, node_id, text_of
from simgpu._strategies.networks import Network
from simgpu._util import naming

PLAIN = (int, float, str, bytes, bool, range, type(None))


class NotReproducible(Exception):
    """A value has no source that makes it again."""


def shown(value: Any) -> str:
    """The repr of a value; of a tensor that of its values when it was drawn."""
    return repr(value.drawn.values if hasattr(value, "drawn") else value)


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
        return f"Drawn([{', '.join(map(shown, self.values))}])"


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
        if isinstance(value, torch.Tensor) and hasattr(value, "drawn"):
            return self._tensor(value.drawn, value.device)
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
        return self._instance(value)

    def _tensor(self, drawn: DrawnTensor, device: torch.device) -> str:
        self.imports.add("import torch")
        values, layout = drawn
        if values.count_nonzero():
            source = f"torch.tensor({self.write(values.tolist())}, dtype={values.dtype})"
        else:
            source = f"torch.zeros({tuple(values.shape)}, dtype={values.dtype})"
        if device.type != "cpu":
            source = f"{source}.to({self.write(device)})"
        if layout == "contiguous":
            return source
        self.imports.add("from simgpu.strategies import laid_out")
        return f"laid_out({source}, {layout!r})"

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


def regression_test(
    item: pytest.Function,
    test: Callable[..., Any],
    seen: dict[str, Any],
    fixtures: Sequence[str],
    key: str,
    schedule: str | None,
) -> str:
    """Return the text of a test that calls the property `item` with only these values.

    Args:
        test: the property's own function.
        seen: its arguments.
        fixtures: names of those that are to be had from fixtures, and not from hypothesis.
        key: goes into the name of the test.
        schedule: the token of the schedule that it is called in, if it is in one.

    Raises NotReproducible where a value cannot be written as source.
    """
    # Where no import finds the module, by its file, relative to the folder of the suite.
    by_path = item.config.getoption("importmode") == "importlib"
    devices = seen["devices"] if "devices" in fixtures else ()
    writer = Writer(devices, test.__module__ if by_path else None)
    given = [
        f"{name}={writer.write(value)}" for name, value in seen.items() if name not in fixtures
    ]
    package, _, module = test.__module__.rpartition(".")
    load, markers = "", ""
    if by_path:
        module = "module"
        writer.imports.add("from simgpu.strategies import load_module")
        load = f"\n\nmodule = load_module(__file__, {item.nodeid.partition('::')[0]!r})"
    else:
        writer.imports.add(f"from {package} import {module}" if package else f"import {module}")
    owner = f"{module}.{item.cls.__qualname__}" if item.cls else module
    itself = [f"{owner}()"] if item.cls else []
    call = ",\n    ".join([*itself, *(f"{name}={name}" for name in fixtures), *given])
    body = f"{owner}.{test.__name__}.hypothesis.inner_test(\n    {call},\n)\n"
    if schedule is not None:
        writer.imports.add("import simgpu")
        body = f"with simgpu.schedule(replay={schedule!r}):\n" + indent(body, " " * 4)
    # With another number of devices the values may be right.
    if "devices" in seen:
        markers = f"@pytest.mark.devices({len(seen['devices'])})\n"
    if "cuda" in naming.names:  # by --as-cuda, for the whole session
        wanted = f'torch.cuda.device_count() != {torch.cuda.device_count()}, reason="found on'
        count = naming.plural(torch.cuda.device_count(), "device")
        markers += f'@pytest.mark.skipif({wanted} {count}")\n'
        writer.imports.add("import torch")
    if markers:
        writer.imports.add("import pytest")
    return (
        "\n".join(sorted(writer.imports))
        + load
        + f"\n\n\n{markers}def {test.__name__}_{key}({', '.join(fixtures)}):\n"
        + f'    """Found by fuzzing."""\n{indent(body, " " * 4)}'
    )


# The folder of the campaign, whichever one a test goes to.
_START = os.getcwd()
# Python's own, such as `unittest`, whose assertions raise there.
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
# The most characters that are kept of each.
MESSAGE = 20_000
EXAMPLE = 4_000


def location(error: BaseException) -> str:
    """Return file:line in the project where an error arose, not in a package or Python's library.

    Nothing for an error that was made and not raised, as those in an exception group may be.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    ours = os.path.dirname(__file__)
    own = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename
        and not frame.filename.startswith((_LIBRARY, "<"))
        and os.path.dirname(frame.filename) != ours
    ]
    frame = (own or list(frames))[-1]
    return f"{os.path.relpath(frame.filename, _START)}:{frame.lineno}"


def name_of(item: pytest.Function) -> str:
    """Return the node id of a property for the folder of the campaign, where it is replayed."""
    return node_id(item, _START)


_IN_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_NUMBER = re.compile(r"[-+]?\b\d[\w.+-]*")


class Kind(Exception):
    """The context of a failed assertion: what it says, without values.

    Of "The values for attribute 'shape' do not match: [2] != [3]" the words remain: a property
    that compares in one line may find a wrong shape, and behind it wrong values. Hypothesis
    separates failures by type, line and context; so each kind has a type of its own.
    """

    message = ""


@functools.cache
def _kind(words: str) -> Kind:
    kind: Kind = type("Kind", (Kind,), {"message": words})()
    return kind


MOST_KINDS = 3  # of one property: more are other values, not other mistakes


def separate_kinds(error: BaseException, kinds: set[str]) -> None:
    """Make hypothesis shrink and report each kind of failure of an assertion, up to 3 of them."""
    if not isinstance(error, AssertionError) or error.__context__ is not None:
        return
    text, left = text_of(error).partition("\n")[0], ""
    while text != left:
        left, text = text, _IN_BRACKETS.sub("", text)
    words = _NUMBER.sub("#", text)
    if words in kinds or len(kinds) < MOST_KINDS:
        kinds.add(words)
        error.__context__, error.__suppress_context__ = _kind(words), True


def kind_of(error: BaseException) -> str:
    """The words that distinguish a failure from others of its assertion; "" where nothing does."""
    return error.__context__.message if isinstance(error.__context__, Kind) else ""


def inner_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those in it if it is an exception group, hypothesis's or the test's."""
    yield error
    if isinstance(getattr(error, "exceptions", None), tuple):
        for inner in error.exceptions:  # type: ignore[attr-defined]  # of an exception group
            yield from inner_errors(inner)


def reproduction_code(error: BaseException) -> str | None:
    """Return the code in hypothesis's note about how to repeat the failure."""
    note = "\n".join(getattr(error, "__notes__", []))
    _, found, rest = note.partition("@reproduce_failure(")
    return rest.partition(", b")[2].partition(")")[0].strip("'\"") if found else None


def of_example(
    item: pytest.Function,
    test: Callable[..., Any],
    seen: dict[str, Any],
    error: BaseException,
    combination: tuple[int, int] | None,
    schedule: str | None = None,
) -> tuple[str, Failure]:
    """Describe an example that failed, and a key that all examples of the same mistake share.

    Args:
        test: the property's own function.
        seen: its arguments, with a Recorder where hypothesis's `data` was.
        schedule: the token of the order of threads that it has drawn, if it has.
    """
    # Of a method, hypothesis gives the instance by name too.
    seen = {name: value for name, value in seen.items() if value is not item.instance}
    where = location(error)
    # The same mistake in several parametrizations of a property is one failure.
    kind = f"{item.nodeid.partition('[')[0]} {type(error).__name__} {where} {kind_of(error)}"
    key = hashlib.sha1(kind.encode()).hexdigest()
    cases = item.callspec.params if hasattr(item, "callspec") else {}
    fixtures = [name for name in seen if name in item.funcargs and name not in cases]
    drawn = {name: value for name, value in seen.items() if name not in fixtures}
    try:
        text = regression_test(item, test, seen, fixtures, key[:6], schedule)
    except NotReproducible:
        text = None
    return key, _failure(
        name_of(item),
        error,
        combination=combination,
        example=", ".join(f"{name}={shown(value)}" for name, value in drawn.items())[:EXAMPLE],
        test=text,
        schedule=schedule,
        kind=kind_of(error),
    )


def of_property(name: str, error: BaseException) -> Failure:
    """Describe a property that fails as a whole: a health check, or nothing to draw from."""
    return _failure(
        name,
        error,
        combination=None,
        example="(no example: the property as a whole)",
        test="# The property itself fails, whatever its example.\n",
    )


def _failure(name: str, error: BaseException, **about: Any) -> Failure:
    return Failure(
        property=name,
        error=type(error).__name__,
        message=text_of(error)[:MESSAGE],
        location=location(error),
        hypothesis=hypothesis.__version__,
        **about,
    )
