"""The marker `devices`: how many devices a test needs, and of what sort."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import pytest

DESCRIPTION = (
    "devices(count, distinct=False, at_least=False): the test has exactly `count` devices, or "
    "with at_least=True all that there are, if not fewer; distinct=True when they must be "
    "different GPUs, which an oversubscribed GPU cannot be."
)

# The fixture that a marked test gets although it names none of ours.
MARKED_DEVICES = "_simgpu_marked_devices"
_FIXTURES = {"devices", "module_devices", "session_devices", MARKED_DEVICES}


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


def give_devices_if_marked(item: pytest.Item) -> None:
    """Let a marked test have its devices, also where it names no fixture (unittest.TestCase)."""
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is None or _FIXTURES & set(names) or not _is_marked(item):
        return
    # First, so that the test's own fixtures find the devices.
    names.insert(0, MARKED_DEVICES)


def _is_marked(item: pytest.Item) -> bool:
    """Whether a test has our marker, and not one that its suite calls by the same name."""
    try:
        wanted = wanted_by(item)
    except TypeError:
        return False
    if wanted is None or type(wanted.count) is not int:
        return False
    declared = [line for line in item.config.getini("markers") if line.startswith("devices")]
    return declared == [DESCRIPTION]
