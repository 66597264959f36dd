"""Tests that need more devices than there are: skipped, and counted at the end of the session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import pytest

from simgpu._pytest.pools import plural

_PROPERTY = "devices wanted"


def skip(request: pytest.FixtureRequest, why: str) -> NoReturn:
    request.node.user_properties.append((_PROPERTY, why))
    pytest.skip(why)


def count_lines(skipped: Iterable[Any]) -> list[str]:
    """Return one line for each reason, with the number of tests that were skipped for it."""
    reasons = [
        text for report in skipped for name, text in report.user_properties if name == _PROPERTY
    ]
    return [
        f"{plural(reasons.count(text), 'test')} skipped, for each {text}"
        for text in sorted(set(reasons))
    ]
