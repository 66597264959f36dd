"""`@pytest.mark.without("--async", reason="...")`: a test runs as if an option were not given.

For tests to which an option does not apply: one that looks at a result before anything has waited
for it, on purpose, cannot pass under `--async`. The session counts them at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from simgpu._counting import plural
from simgpu._pytest.marker import is_ours, tell_wrong
from simgpu._pytest.options import DeviceOptions, read_options

# By option, what `DeviceOptions` has where it is not given.
_NOT_GIVEN: dict[str, dict[str, Any]] = {
    "--async": {"lazy": False, "async_seed": None},
    "--races": {"races": False},
    "--faults": {"faults": None},
    "--schedules": {"schedules": None, "schedule": None},
}
OPTIONS = tuple(_NOT_GIVEN)
DESCRIPTION = (
    "without(option, ..., reason): the test runs as if these options of the session had not been "
    f"given; any of {', '.join(OPTIONS)}."
)
_WAY_OUT = (
    f'write @pytest.mark.without("--async", reason="why"), with one or more of {", ".join(OPTIONS)}'
)
_LEFT_OUT = pytest.StashKey[frozenset[str]]()
_PROPERTY = "option left out"


def read_markers(item: pytest.Item) -> None:
    """Keep which options a test runs without; a wrong marker is an error of its test."""
    markers = list(item.iter_markers("without"))
    if not markers or not is_ours(item, DESCRIPTION):
        return
    told: set[str] = set()
    for marker in markers:
        reason = marker.kwargs.get("reason")
        options = [option for option in marker.args if option in OPTIONS]
        has_reason = isinstance(reason, str) and bool(reason.strip())
        if (
            not options
            or len(options) < len(marker.args)
            or not has_reason
            or len(marker.kwargs) > 1
        ):
            tell_wrong(item, marker, _WAY_OUT)
        told.update(options)
    item.stash[_LEFT_OUT] = frozenset(told)
    item.user_properties += [(_PROPERTY, option) for option in sorted(told & _given(item.config))]


def options_for(item: pytest.Item) -> DeviceOptions:
    """What the session asks for, less what the test's markers leave out."""
    options, left_out = read_options(item.config), item.stash.get(_LEFT_OUT, frozenset())
    changes: dict[str, Any] = {}
    for option in left_out:
        changes |= _NOT_GIVEN[option]
    return replace(options, **changes)


def count_lines(reports: Iterable[Any]) -> list[str]:
    """One line for each option that was given, with the number of tests that left it out."""
    properties = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    left_out = [option for name, option in properties if name == _PROPERTY]
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
        for option, unset in _NOT_GIVEN.items()
        if any(getattr(options, name) != value for name, value in unset.items())
    }
