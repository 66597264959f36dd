"""The marker `devices`: how many devices a test needs, and of what sort."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import pytest

DESCRIPTION = (
    "devices(count, distinct=False, at_least=False): the test has exactly `count` devices, or "
    "with at_least=True all that there are, if not fewer; distinct=True when they must be "
    "different GPUs, which an oversubscribed GPU cannot be."
)


@dataclass(frozen=True)
class Wanted:
    """The arguments of the marker."""

    count: int
    _: KW_ONLY
    distinct: bool = False
    at_least: bool = False


def wanted_by(node: pytest.Collector | pytest.Item) -> Wanted | None:
    """Return what the nearest marker of a test asks for; None if there is no marker."""
    marker = node.get_closest_marker("devices")
    return None if marker is None else Wanted(*marker.args, **marker.kwargs)
