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

    Raises TypeError or ValueError for one with other arguments than `Wanted` has.
    """
    marker = node.get_closest_marker("devices")
    if marker is None:
        return None
    try:
        wanted = Wanted(*marker.args, **marker.kwargs)
    except TypeError:
        raise TypeError(_words(marker)) from None
    kinds = [type(told) for told in (wanted.count, wanted.distinct, wanted.at_least)]
    if kinds != [int, bool, bool]:
        raise TypeError(_words(marker))
    if wanted.count < 1:
        raise ValueError(_words(marker))
    return wanted


# What is wrong with what is asked of a test, which is told as an error of that test.
_WRONG = pytest.StashKey[str]()


def tell_wrong(item: pytest.Item, marker: pytest.Mark, hint: str) -> None:
    """Let a test fail for one of its markers, before anything of it runs."""
    tell_of(item, f"{call_of(marker)}: {hint}")


def tell_of(item: pytest.Item, what: str) -> None:
    """Let a test fail for what its markers and the session's options ask of it."""
    item.stash[_WRONG] = f"{item.nodeid}: {what}"


def fail_if_wrong(item: pytest.Item) -> None:
    """Raise what `tell_wrong` or `tell_of` was told of this test."""
    if _WRONG in item.stash:
        pytest.fail(item.stash[_WRONG], pytrace=False)


def call_of(marker: pytest.Mark) -> str:
    """A marker as the test has it: "@pytest.mark.devices(2)"."""
    named = [f"{name}={value!r}" for name, value in marker.kwargs.items()]
    told = ", ".join([*map(repr, marker.args), *named])
    return f"@pytest.mark.{marker.name}({told})"


def _words(marker: pytest.Mark) -> str:
    return (
        f"{call_of(marker)}: write @pytest.mark.devices(n), n being an int from 1 on, with "
        "distinct=True or at_least=True where that is meant"
    )


def give_devices_if_marked(item: pytest.Item) -> None:
    """Let a marked test have its devices, also where it names no fixture (unittest.TestCase)."""
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is None or FIXTURES & set(names) or not _is_marked(item):
        return
    # First, so that the test's own fixtures find the devices.
    names.insert(0, MARKED_DEVICES)


def _is_marked(item: pytest.Item) -> bool:
    """Whether a test has our marker, and not one that its suite calls by the same name."""
    try:
        wanted = wanted_by(item)
    except (TypeError, ValueError):
        return False
    return wanted is not None and is_ours(item, DESCRIPTION)


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
