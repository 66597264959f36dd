"""Strategies shared by the properties: devices, batches, dims, dtypes, nested inputs, cases.

They shrink towards the smallest batch, the fewest devices and the plainest structure. Each knows
nothing of the library under test.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.observe import Case, values

MAX_DEVICES = 8
MAX_BATCH = 200

FLOATS = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS, "int64", "int32", "uint8", "int8", "bool", "complex64", "complex128")


@st.composite
def device_slots(draw: DrawFn, min_size: int = 1, max_size: int = MAX_DEVICES) -> tuple[int, ...]:
    """Slots of different devices, in any order."""
    count = draw(st.integers(min_size, max_size))
    order = draw(st.permutations(range(max_size)) | st.just(range(max_size)))
    return tuple(order[:count])


@st.composite
def device_lists(
    draw: DrawFn, devices: Sequence[torch.device], min_size: int = 1
) -> list[torch.device]:
    """Different devices out of `devices`, at least `min_size`, in any order."""
    slots = draw(device_slots(min_size, len(devices)))
    return [devices[slot] for slot in slots]


def batches(devices: int, max_size: int = MAX_BATCH, min_size: int = 0) -> SearchStrategy[int]:
    """Batch sizes, half of them at the edges for this number of devices."""
    n = devices
    edges = {0, 1, n - 1, n, n + 1, 2 * n - 1, 2 * n, 2 * n + 1, n * n, n * n + 1, max_size}
    fitting = sorted(edge for edge in edges if min_size <= edge <= max_size)
    return st.sampled_from(fitting) | st.integers(min_size, max_size)


def dims(ndim: int) -> SearchStrategy[int]:
    """Dimensions of a tensor of `ndim` dimensions, counted from either end."""
    return st.integers(0, ndim - 1) | st.integers(-ndim, -1)


def dtypes(names: Sequence[str] = DTYPES) -> SearchStrategy[str]:
    return st.sampled_from(names)


def layouts() -> SearchStrategy[str]:
    return st.sampled_from(("contiguous", "transposed", "strided"))


@st.composite
def cases(draw: DrawFn, op: str) -> Case:
    """Cases of the operations that cut or join a tensor: any shape, dim, dtype and layout."""
    slots = draw(device_slots())
    shape = draw(st.lists(st.integers(0, 3), min_size=0, max_size=3))
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
        seed=draw(st.integers(0, 1000)),
        source=draw(st.just(-1) | st.sampled_from(slots) | st.integers(0, MAX_DEVICES - 1)),
        target=draw(st.sampled_from(slots) | st.integers(-1, MAX_DEVICES - 1)),
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
        seed=draw(st.integers(0, 1000)),
        target=draw(st.sampled_from(slots)),
    )


@st.composite
def step_cases(draw: DrawFn, min_batch: int = 0, repeats: bool = False) -> Case:
    """Cases of one training step in numbers that are exact in their dtype.

    With `repeats`, one device may stand in the list several times.
    """
    if repeats:
        anywhere = st.integers(0, MAX_DEVICES - 1)
        slots = tuple(draw(st.lists(anywhere, min_size=1, max_size=MAX_DEVICES)))
    else:
        slots = draw(device_slots())
    batch = draw(batches(len(slots), min_size=min_batch))
    return Case(
        op="step",
        slots=slots,
        shape=(batch, draw(st.integers(1, 5))),
        dtype=draw(dtypes(("float32", "float64"))),
        seed=draw(st.integers(0, 1000)),
        source=draw(st.sampled_from((-1, slots[0]))),
    )


class Pair(NamedTuple):
    """The named tuple that nested inputs are made of."""

    left: Any
    right: Any


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

    def containers(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
        return (
            st.lists(inner, min_size=1, max_size=3)
            | st.lists(inner, min_size=1, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
            | st.builds(Pair, inner, inner)
        )

    tree = st.recursive(leaves, containers, max_leaves=4)
    return (
        rows
        | st.tuples(rows, tree)
        | st.tuples(tree, rows).map(list)
        | st.fixed_dictionaries({"first": rows, "then": tree})
        | st.builds(Pair, tree, rows)
    )


def built(tree: Any, batch: int) -> Any:
    """Return `tree` with every `Rows` leaf made into a CPU tensor."""
    if isinstance(tree, Rows):
        return values((batch, *tree.row), tree.dtype, tree.seed)
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
