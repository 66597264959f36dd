"""A failing example: what is kept of it, and how it becomes a regression test."""

from __future__ import annotations

import hashlib
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

from simgpu._fuzz.reproducers import Home, NotReproducible, regression_test
from simgpu._fuzz.tally import Failure
from simgpu._testing.error_text import text_of
from simgpu._testing.node_ids import node_id

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
    kind = f"{item.nodeid.partition('[')[0]} {type(error).__name__} {where}"
    key = hashlib.sha1(kind.encode()).hexdigest()
    cases = item.callspec.params if hasattr(item, "callspec") else {}
    fixtures = [name for name in seen if name in item.funcargs and name not in cases]
    drawn = {name: value for name, value in seen.items() if name not in fixtures}
    failure = Failure(
        property=name_of(item),
        error=type(error).__name__,
        message=text_of(error)[:MESSAGE],
        location=where,
        combination=combination,
        example=", ".join(f"{name}={value!r}" for name, value in drawn.items())[:EXAMPLE],
        test=_regression_test(item, test, seen, fixtures, key[:6], schedule),
        hypothesis=hypothesis.__version__,
        schedule=schedule,
    )
    return key, failure


def of_property(name: str, error: BaseException) -> Failure:
    """Describe a property that fails as a whole: a health check, or nothing to draw from."""
    return Failure(
        property=name,
        error=type(error).__name__,
        message=text_of(error)[:MESSAGE],
        location=location(error),
        combination=None,
        example="(no example: the property as a whole)",
        test="# The property itself fails, whatever its example.\n",
        hypothesis=hypothesis.__version__,
    )


def _regression_test(
    item: pytest.Function,
    test: Callable[..., Any],
    seen: dict[str, Any],
    fixtures: list[str],
    key: str,
    schedule: str | None,
) -> str | None:
    arguments = {
        name: value for name, value in seen.items() if name not in fixtures or name == "devices"
    }
    try:
        text = regression_test(_home(item, test), arguments, fixtures, key, schedule)
    except NotReproducible:
        return None
    if "devices" in seen and item.get_closest_marker("devices") is not None:
        marker = f"@pytest.mark.devices({len(seen['devices'])})\n"
        text = "import pytest\n" + text.replace("\n\n\ndef ", f"\n\n\n{marker}def ", 1)
    return text


def _home(item: pytest.Function, test: Callable[..., Any]) -> Home:
    name = f"{item.cls.__qualname__}.{test.__name__}" if item.cls else test.__name__
    by_path = item.config.getoption("importmode") == "importlib"
    return Home(test.__module__, name, item.nodeid.partition("::")[0] if by_path else None)
