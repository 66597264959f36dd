"""The markers `devices` and `without`, and the skips of tests that need more devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NoReturn

import pytest

from simgpu._pytest.options import SessionOptions, read_options
from simgpu._util.naming import plural

DEVICES_MARKER = (
    "devices(count, distinct=False, at_least=False): the test has exactly `count` devices, or "
    "with at_least=True all that there are, if not fewer; distinct=True when they must be "
    "different GPUs, which an oversubscribed GPU cannot be."
)

# The fixture that a marked test gets although it names none of ours.
MARKED_DEVICES = "_simgpu_marked_devices"
FIXTURES = {"devices", "module_devices", "session_devices", MARKED_DEVICES}


@dataclass(frozen=True)
class Wanted:
    """The arguments of the marker."""

    count: int
    _: KW_ONLY
    distinct: bool = False
    at_least: bool = False


def wanted_by(node: pytest.Collector | pytest.Item) -> Wanted | None:
    """Return what the nearest marker of a test asks for; None if there is no marker.

    Raises ValueError for one with other arguments than `Wanted` has.
    """
    marker = node.get_closest_marker("devices")
    if marker is None:
        return None
    try:
        wanted = Wanted(*marker.args, **marker.kwargs)
    except TypeError:
        wanted = Wanted(0)
    kinds = [type(value) for value in (wanted.count, wanted.distinct, wanted.at_least)]
    if kinds != [int, bool, bool] or wanted.count < 1:
        raise ValueError(
            f"{call_of(marker)}: write @pytest.mark.devices(n), n being an int from 1 on, with "
            "distinct=True or at_least=True where that is meant"
        )
    return wanted


# Why the request of a test is wrong; reported as an error of that test.
_WRONG = pytest.StashKey[str]()


def fail_item(item: pytest.Item, marker: pytest.Mark, hint: str) -> None:
    """Fail a test for one of its markers, before any of it runs."""
    fail_marker(item, f"{call_of(marker)}: {hint}")


def fail_marker(item: pytest.Item, what: str) -> None:
    """Fail a test for what its markers and the session's options request."""
    item.stash[_WRONG] = f"{item.nodeid}: {what}"


def fail_if_wrong(item: pytest.Item) -> None:
    """Raise the error that `fail_item` or `fail_marker` recorded for this test."""
    if _WRONG in item.stash:
        pytest.fail(item.stash[_WRONG], pytrace=False)


def call_of(marker: pytest.Mark) -> str:
    """A marker as the test has it: "@pytest.mark.devices(2)"."""
    named = [f"{name}={value!r}" for name, value in marker.kwargs.items()]
    arguments = ", ".join([*map(repr, marker.args), *named])
    return f"@pytest.mark.{marker.name}({arguments})"


def give_devices_if_marked(item: pytest.Item) -> None:
    """Give a marked test its devices, also where it names no fixture (unittest.TestCase)."""
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is None or FIXTURES & set(names):
        return
    with contextlib.suppress(ValueError):  # of a marker that its suite calls by the same name
        if wanted_by(item) is not None and is_ours(item, DEVICES_MARKER):
            names.insert(0, MARKED_DEVICES)  # first, so that the test's own fixtures find them


def is_ours(item: pytest.Item, description: str) -> bool:
    """Whether the marker that `description` declares is not one that the suite declares, too."""
    name = _name_in(description)
    declared = [line for line in item.config.getini("markers") if _name_in(line) == name]
    return declared == [description]


def closest_of_ours(item: pytest.Item, description: str) -> pytest.Mark | None:
    """Return the nearest marker of a test that `description` declares, unless the suite does."""
    marker = item.get_closest_marker(_name_in(description))
    return marker if marker is not None and is_ours(item, description) else None


def _name_in(description: str) -> str:
    """The marker's name in a line that declares it, as pytest finds it there."""
    return description.partition(":")[0].partition("(")[0].strip()


WANTED_PROPERTY = "devices wanted"


def skip(request: pytest.FixtureRequest, why: str) -> NoReturn:
    # A module or a session, for which wider fixtures are made, has none.
    getattr(request.node, "user_properties", []).append((WANTED_PROPERTY, why))
    pytest.skip(why)


def properties(reports: Iterable[Any], name: str) -> list[Any]:
    """Return the values of the user properties of this name, of all reports."""
    # A module that skips itself while it is collected has a report without user_properties.
    pairs = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    return [value for key, value in pairs if key == name]


def skip_lines(skipped: Iterable[Any]) -> list[str]:
    """Return one line for each reason, with the number of tests that were skipped for it."""
    reasons = properties(skipped, WANTED_PROPERTY)
    lines = []
    for text in sorted(set(reasons)):
        count = reasons.count(text)
        lines.append(f"{plural(count, 'test')} skipped: {'it' if count == 1 else 'each'} {text}")
    return lines


# `@pytest.mark.without("--async", reason="...")`: a test runs as if an option were not given.
#
# For tests to which an option does not apply: one that looks at a result before anything has waited
# for it, on purpose, cannot pass under `--async`. The session counts them at its end.

# By option, the fields of `SessionOptions` that have their default where it is not given.
_FIELDS = {
    "--async": ("lazy", "async_seed"),
    "--races": ("races",),
    "--faults": ("faults",),
    "--schedules": ("schedules", "schedule"),
}
_NOT_GIVEN = SessionOptions()
OPTIONS = tuple(_FIELDS)
WITHOUT_MARKER = (
    "without(option, ..., reason): the test runs as if these options of the session had not been "
    f"given; any of {', '.join(OPTIONS)}."
)
_WAY_OUT = (
    f'write @pytest.mark.without("--async", reason="why"), with one or more of {", ".join(OPTIONS)}'
)
_LEFT_OUT = pytest.StashKey[frozenset[str]]()
_LEFT_OUT_PROPERTY = "option left out"


def read_markers(item: pytest.Item) -> None:
    """Keep which options a test runs without; a wrong marker is an error of its test."""
    markers = list(item.iter_markers("without"))
    if not markers or not is_ours(item, WITHOUT_MARKER):
        return
    left_out: set[str] = set()
    for marker in markers:
        reason = marker.kwargs.get("reason")
        options = [option for option in marker.args if option in OPTIONS]
        has_reason = isinstance(reason, str) and reason.strip() and len(marker.kwargs) == 1
        if not options or len(options) < len(marker.args) or not has_reason:
            fail_item(item, marker, _WAY_OUT)
        left_out.update(options)
    item.stash[_LEFT_OUT] = frozenset(left_out)
    item.user_properties += [
        (_LEFT_OUT_PROPERTY, option) for option in sorted(left_out & _given(item.config))
    ]


def options_for(item: pytest.Item) -> SessionOptions:
    """What the session asks for, less what the test's markers leave out."""
    options, left_out = read_options(item.config), item.stash.get(_LEFT_OUT, frozenset())
    names = [name for option in left_out for name in _FIELDS[option]]
    return replace(options, **{name: getattr(_NOT_GIVEN, name) for name in names})


def left_out_lines(reports: Iterable[Any]) -> list[str]:
    """One line for each option that was given, with the number of tests that left it out."""
    left_out = properties(reports, _LEFT_OUT_PROPERTY)
    return [
        f"{plural(left_out.count(option), 'test')} ran without {option} (@pytest.mark.without)"
        for option in OPTIONS
        if option in left_out
    ]


def _given(config: pytest.Config) -> set[str]:
    """The options of this session that a test can leave out."""
    options = read_options(config)
    return {
        option
        for option, names in _FIELDS.items()
        if any(getattr(options, name) != getattr(_NOT_GIVEN, name) for name in names)
    }
