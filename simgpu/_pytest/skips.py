"""Tests that need more devices than there are: skipped, and counted at the end of the session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import pytest

from simgpu._counting import plural

_PROPERTY = "devices wanted"


def skip(request: pytest.FixtureRequest, why: str) -> NoReturn:
    # A module or a session, for which wider fixtures are made, has none.
    getattr(request.node, "user_properties", []).append((_PROPERTY, why))
    pytest.skip(why)


def count_lines(skipped: Iterable[Any]) -> list[str]:
    """Return one line for each reason, with the number of tests that were skipped for it."""
    # A module that skips itself while it is collected has a report without user_properties.
    properties = [pair for report in skipped for pair in getattr(report, "user_properties", ())]
    reasons = [text for name, text in properties if name == _PROPERTY]
    lines = []
    for text in sorted(set(reasons)):
        count = reasons.count(text)
        lines.append(f"{plural(count, 'test')} skipped: {'it' if count == 1 else 'each'} {text}")
    return lines
