"""Strategies shared by the properties: `simgpu.strategies`, and the cases that are made of them.

They shrink towards the smallest batch, the fewest devices and the plainest structure. Each knows
nothing of the library under test.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from simgpu import strategies
from simgpu._strategies.examples import tried
from simgpu._strategies.networks import exact_values
from simgpu.strategies import DTYPES, FLOATS, Pair, batches, dims
from simgpu.strategies import nested as nested_of
from tests.support.observe import Case, plain

__all__ = ["DTYPES", "FLOATS", "Pair", "batches", "device_lists", "dims", "tried"]

MAX_DEVICES = 8

T = TypeVar("T")

# For a property that is run once for each of many operators or modules.
fewer_examples = settings(max_examples=max(1, settings().max_examples // 3))


def device_lists(
    devices: Sequence[T], min_size: int = 1, max_size: int | None = None
) -> SearchStrategy[list[T]]:
    """Lists of devices as `simgpu.strategies` has them, shorter in a session that has fewer."""
    most = len(devices)
    return strategies.device_lists(devices, min(min_size, most), min(max_size or most, most))


# Kept, here and below: hypothesis takes longer to check a new strategy than to draw from it.
@functools.cache
def device_slots(
    min_size: int = 1, max_size: int = MAX_DEVICES, repeats: bool = False
) -> SearchStrategy[tuple[int, ...]]:
    """Slots of devices, in any order, different unless `repeats`."""
    slots = strategies.device_lists(range(MAX_DEVICES), min_size, max_size, repeats=repeats)
    return slots.map(tuple)


@functools.cache
def dtypes(names: Sequence[str] = DTYPES) -> SearchStrategy[str]:
    return st.sampled_from(names)


@functools.cache
def layouts() -> SearchStrategy[str]:
    return st.sampled_from(("contiguous", "transposed", "strided"))


SEEDS = st.integers(0, 1000)
OTHER_SIZES = st.lists(st.integers(0, 3), min_size=0, max_size=3)
WIDTHS = st.integers(1, 5)


@functools.cache
def _sources(slots: tuple[int, ...]) -> SearchStrategy[int]:
    return st.just(-1) | st.sampled_from(slots) | st.integers(0, MAX_DEVICES - 1)


@functools.cache
def _targets(slots: tuple[int, ...]) -> SearchStrategy[int]:
    return st.sampled_from(slots) | st.integers(-1, MAX_DEVICES - 1)


@st.composite
def cases(draw: DrawFn, op: str, max_devices: int = MAX_DEVICES) -> Case:
    """Cases of the operations that cut or join a tensor: any shape, dim, dtype and layout."""
    slots = draw(device_slots(max_size=max_devices))
    shape = list(draw(OTHER_SIZES))
    dim = draw(dims(len(shape) + 1))
    at = dim if dim >= 0 else dim + len(shape) + 1
    shape.insert(at, draw(batches(len(slots))))
    return Case(
        op=op,
        slots=slots,
        shape=tuple(shape),
        dim=dim,
        dtype=draw(dtypes()),
        layout=draw(layouts()),
        seed=draw(SEEDS),
        source=draw(_sources(slots)),
        target=draw(_targets(slots)),
    )


@st.composite
def collective_cases(draw: DrawFn, op: str, names: Sequence[str] = DTYPES) -> Case:
    """Cases of the operations that hold one tensor per device."""
    slots = draw(device_slots())
    return Case(
        op=op,
        slots=slots,
        shape=tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))),
        dtype=draw(dtypes(names)),
        seed=draw(SEEDS),
        target=draw(st.sampled_from(slots)),
    )


def host_cases(op: str) -> SearchStrategy[Case]:
    """Cases that begin with one tensor of the host that has elements."""
    return st.builds(
        Case,
        op=st.just(op),
        slots=st.just(()),
        shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
        dtype=dtypes(),
        layout=layouts(),
        seed=st.integers(0, 1000),
        source=st.just(-1),
    )


@st.composite
def step_cases(draw: DrawFn, min_batch: int = 0, repeats: bool = False) -> Case:
    """Cases of one training step in numbers that are exact in their dtype.

    With `repeats`, one device may stand in the list several times.
    """
    slots = draw(device_slots(repeats=repeats))
    batch = draw(batches(len(slots), min_size=min_batch))
    return Case(
        op="step",
        slots=slots,
        shape=(batch, draw(WIDTHS)),
        dtype=draw(dtypes(("float32", "float64"))),
        seed=draw(SEEDS),
        source=draw(st.sampled_from((-1, slots[0]))),
    )


class Rows(NamedTuple):
    """A leaf that stands for a tensor of `batch` rows of this shape."""

    row: tuple[int, ...]
    dtype: str
    seed: int


rows = st.builds(
    Rows,
    row=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    dtype=dtypes(),
    seed=st.integers(0, 1000),
)
constants = st.none() | st.integers(-5, 5) | st.text("ab", max_size=2) | st.booleans()


def nested(leaves: SearchStrategy[Any] = rows | constants) -> SearchStrategy[Any]:
    """Trees of tuples, lists, dicts and named tuples with at least one tensor of rows in them."""
    return nested_of(rows, leaves)


def built(tree: Any, batch: int) -> Any:
    """Return `tree` with every `Rows` leaf made into a CPU tensor."""
    if isinstance(tree, Rows):
        return exact_values((batch, *tree.row), tree.dtype, tree.seed)
    return mapped(tree, lambda child: built(child, batch))


def mapped(tree: Any, function: Any) -> Any:
    """Apply `function` to the children of a container; a leaf is returned as it is."""
    if isinstance(tree, Pair):
        return Pair(*(function(child) for child in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(function(child) for child in tree)
    if isinstance(tree, dict):
        return {key: function(child) for key, child in tree.items()}
    return tree


def check_tree(found: Any, whole: Any, device: torch.device, rows: slice = slice(None)) -> None:
    """Require `whole` again on `device`, with these rows of each of its tensors."""
    assert type(found) is type(whole)
    if isinstance(whole, torch.Tensor):
        expected = whole[rows]
        assert found.device == device
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert plain(found) == plain(expected)
    elif isinstance(whole, dict):
        assert list(found) == list(whole)
        for key in whole:
            check_tree(found[key], whole[key], device, rows)
    elif isinstance(whole, list | tuple):
        for part, full in zip(found, whole, strict=True):
            check_tree(part, full, device, rows)
    else:
        assert found is whole
