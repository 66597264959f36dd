"""Hypothesis strategies for multi-device tests, for this suite and for yours.

    from hypothesis import HealthCheck, given, settings, strategies as st
    from simgpu import strategies

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_it(devices, data):
        some = data.draw(strategies.device_lists(devices))
        batch = data.draw(strategies.batches(len(some)))

All of them shrink: to the fewest devices in their given order, the smallest batch, float32, the
contiguous layout, the network of one layer. Nothing here makes a device or names a device type.
Needs hypothesis (`pip install hypothesis`); importing simgpu does not.

May import: `_strategies`, `_util`, `torch`, `hypothesis`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from simgpu._util.naming import plural

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "simgpu.strategies needs hypothesis, which is not installed: pip install hypothesis"
    ) from error

import torch
from hypothesis.strategies import DrawFn, SearchStrategy

from simgpu._strategies.examples import Drawn, DrawnTensor, load_module, tried, within_limits
from simgpu._strategies.networks import ACTIVATIONS, Network, exact_values, ordinary_values

__all__ = [
    "DTYPES",
    "FLOATS",
    "LAYOUTS",
    "Drawn",
    "Network",
    "Pair",
    "batches",
    "chunkings",
    "device_counts",
    "device_lists",
    "dims",
    "exact_values",
    "laid_out",
    "load_module",
    "modules",
    "nested",
    "ordinary_values",
    "tensors",
    "tried",
    "world_sizes",
]

T = TypeVar("T")


def __dir__() -> list[str]:
    return sorted(__all__)


FLOATS = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS, "int64", "int32", "uint8", "int8", "bool", "complex64", "complex128")
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "channels_last")

# Above this, a batch size is drawn only where it is an edge.
_DENSE = 1024


def device_counts(min_value: int = 1, max_value: int = 8) -> SearchStrategy[int]:
    """Numbers of devices from `min_value` to `max_value`; shrinks to the fewest.

    `python -m simgpu fuzz --devices 2..4` narrows the range where it can.
    """
    if not 0 <= min_value <= max_value:
        raise ValueError(f"device counts from {min_value} to {max_value}: there are none")
    return st.integers(*within_limits(min_value, max_value))


@functools.lru_cache(maxsize=64)
def _orders(count: int) -> SearchStrategy[Sequence[int]]:
    """Orders of the numbers below `count`, half of them ascending: most code sees only that."""
    return st.permutations(range(count)) | st.just(range(count))


@st.composite
def _lists(draw: DrawFn, devices: Sequence[T], least: int, most: int, repeats: bool) -> list[T]:
    count = draw(device_counts(least, most))
    if repeats:
        indices = draw(st.lists(st.integers(0, len(devices) - 1), min_size=count, max_size=count))
    else:
        indices = list(draw(_orders(len(devices))))[:count]
    return [devices[index] for index in indices]


def world_sizes(min_value: int = 1, max_value: int = 8) -> SearchStrategy[int]:
    """Numbers of ranks from `min_value` to `max_value`, for `simgpu.ranks`; shrinks to the fewest.

    `python -m simgpu fuzz --ranks 2..4` narrows the range where it can.
    """
    if not 1 <= min_value <= max_value:
        raise ValueError(f"world sizes from {min_value} to {max_value}: there are none")
    return st.integers(*within_limits(min_value, max_value, "ranks"))


def device_lists(
    devices: Sequence[T],
    min_size: int = 1,
    max_size: int | None = None,
    *,
    repeats: bool = False,
) -> SearchStrategy[list[T]]:
    """Lists of some of `devices` (or slots, or ordinals), in any order.

    Args:
        devices: what to choose from; any sequence.
        min_size: the fewest devices in a list.
        max_size: the most devices in a list; by default all.
        repeats: whether a list may name one device several times; then there may be more of
            them than there are devices.

    Shrinks to only the first device. Raises ValueError where there are no devices or no such list.
    """
    if isinstance(devices, (str, bytes)):
        raise TypeError(f"devices must be a list, such as [{devices!r}], and not a text")
    most = len(devices) if max_size is None else max_size
    if not devices:
        raise ValueError(
            "no devices to draw from: run the tests with --as-cuda, or within simgpu.devices(n)"
        )
    if not 0 <= min_size <= most or (most > len(devices) and not repeats):
        raise ValueError(
            f"no list of {min_size} to {most} out of {plural(len(devices), 'device')}"
            + ("" if repeats else " without repeats")
        )
    return _lists(devices, min_size, most, repeats)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, int(number**0.5) + 1))


@functools.lru_cache(maxsize=512)
def _batch_sizes(n: int, least: int, most: int) -> tuple[int, ...]:
    """Return every size in order, then the edges as often as all of them together.

    Hypothesis shrinks to a lower index: in the first part that is the next smaller size, which it
    can go down one by one.
    """
    edges = {0, 1, n - 1, n, n + 1, 2 * n - 1, 2 * n, 2 * n + 1, 3 * n, n * n - 1, n * n, n * n + 1}
    edges |= {next(k for k in range(n + 1, 2 * n + 4) if _is_prime(k)), most}
    edges.add(next((k for k in range(most, 1, -1) if _is_prime(k)), most))
    fitting = sorted(edge for edge in edges if least <= edge <= most)
    everything = range(least, min(most, max(_DENSE, least)) + 1)
    times = max(1, len(everything) // max(1, len(fitting)))
    return (*everything, *fitting * times)


# Kept: hypothesis looks through all sizes of a new strategy, which takes longer than to draw one.
@functools.lru_cache(maxsize=512)
def _sizes(n: int, least: int, most: int) -> SearchStrategy[int]:
    return st.sampled_from(_batch_sizes(n, least, most))


@st.composite
def _batches(draw: DrawFn, devices: int, least: int, most: int) -> int:
    batch = draw(_sizes(devices, least, most))
    tried(batch=batch, devices=devices)
    return batch


# Kept: hypothesis takes longer to check a new strategy than to draw from it.
@functools.lru_cache(maxsize=512)
def batches(devices: int, max_size: int = 200, min_size: int = 0) -> SearchStrategy[int]:
    """Batch sizes for this number of devices, about half of them at its edges.

    The edges are 0, 1, n - 1, n, n + 1, the same around 2n and n * n, 3n, a prime above n, the
    largest prime and the largest size. Shrinks to the smallest size. Each combination drawn is
    reported by `tried`.
    """
    for name, value in (("devices", devices), ("min_size", min_size), ("max_size", max_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {value!r}")
    if devices < 1 or not 0 <= min_size <= max_size:
        raise ValueError(
            f"devices={devices} must be 1 or more, and sizes from {min_size} to {max_size} must "
            "be a range of numbers that are not negative"
        )
    return _batches(devices, min_size, max_size)


def chunkings(batch: int, devices: int, min_size: int = 0) -> SearchStrategy[list[int]]:
    """Ways to cut `batch` rows into one chunk per device: lists of sizes, in any proportion.

    Each size is at least `min_size`. Shrinks to all spare rows in the last chunk. Raises
    ValueError where `batch` has too few rows.
    """
    spare = batch - devices * min_size
    if devices < 1 or min_size < 0 or spare < 0:
        raise ValueError(
            f"{plural(batch, 'row')} cannot be cut into {plural(devices, 'chunk')} of {min_size} "
            "or more"
        )

    def sizes(cuts: list[int]) -> list[int]:
        ends = [0, *sorted(cuts), spare]
        return [end - start + min_size for start, end in pairwise(ends)]

    return st.lists(st.integers(0, spare), min_size=devices - 1, max_size=devices - 1).map(sizes)


@functools.lru_cache(maxsize=64)
def dims(ndim: int) -> SearchStrategy[int]:
    """Dimensions of a tensor of `ndim` dimensions (0: ValueError), counted from either end."""
    if ndim < 1:
        raise ValueError(f"a tensor of {plural(ndim, 'dimension')} has none to draw from")
    return st.integers(0, ndim - 1) | st.integers(-ndim, -1)


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor of the same values in another of the `LAYOUTS`.

    "transposed" has its strides in reverse order, "strided" every second element of its memory,
    "offset" starts later in its memory, "channels_last" is so for 4 dimensions and contiguous for
    others.
    """
    if layout == "transposed":
        order = tuple(reversed(range(tensor.ndim)))
        return tensor.permute(order).contiguous().permute(order)
    if layout == "strided" and tensor.ndim:
        return torch.stack([tensor, tensor], dim=-1).flatten(-2)[..., ::2]
    if layout == "offset":
        memory = torch.cat([tensor.new_zeros(3), tensor.flatten()])
        return memory[3:].view(tensor.shape)
    if layout == "channels_last" and tensor.ndim == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} must be one of {', '.join(LAYOUTS)}")
    return tensor.contiguous()


# How many integers there are to choose from, by `exact`: zeros, signs, or all that no dtype rounds.
# 0 is for numbers that round.
_SPANS = {None: (1, 3, *[251] * 3, *[0] * 3), True: (1, 3, *[251] * 6), False: (0,)}


@st.composite
def tensors(
    draw: DrawFn,
    shape: Sequence[int] | SearchStrategy[Sequence[int]] | None = None,
    *,
    dtypes: Sequence[str] = DTYPES,
    layouts: Sequence[str] = LAYOUTS,
    exact: bool | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Tensors of any dtype, dimensions and memory format, on `device`.

    Args:
        shape: a shape, or a strategy of shapes (by default up to 4 dimensions of 0 to 3).
        dtypes: names of dtypes to choose from.
        layouts: names of layouts to choose from.
        exact: True for integers that sum exactly (`exact_values`), False for numbers that round
            (`ordinary_values`), None for either.

    Shrinks to contiguous float32 zeros (exact=False: numbers that round), of no dimensions by
    default. A regression test of a report has the values in it.
    """
    if shape is None:
        shape = st.lists(st.integers(0, 3), max_size=4)
    wanted = draw(shape) if isinstance(shape, SearchStrategy) else shape
    if not all(isinstance(size, int) and size >= 0 for size in wanted):
        raise ValueError(f"a shape is a list of ints from 0 on, got {wanted!r}")
    dtype = draw(st.sampled_from(tuple(dtypes)))
    layout = draw(st.sampled_from(tuple(layouts)))
    span = draw(st.sampled_from(_SPANS[exact]))
    seed = draw(st.integers(0, 1000))
    shape = tuple(wanted)
    values = exact_values(shape, dtype, seed, span) if span else ordinary_values(shape, dtype, seed)
    tensor = laid_out(values.to(device), layout)
    # For the source of a regression test, whatever the property writes to the tensor.
    tensor.drawn = DrawnTensor(values.clone(), layout)  # type: ignore[attr-defined]
    return tensor


class Pair(NamedTuple):
    """The named tuple that nested structures are made of."""

    left: Any
    right: Any


_CONSTANTS: SearchStrategy[Any] = (
    st.none() | st.integers(-5, 5) | st.text("ab", max_size=2) | st.booleans()
)


def nested(
    leaves: SearchStrategy[Any], others: SearchStrategy[Any] = _CONSTANTS
) -> SearchStrategy[Any]:
    """Trees of tuples, lists, dicts and named tuples with at least one of `leaves` in them.

    `others` are further leaves, by default None, numbers, texts and booleans. Shrinks to one leaf
    without a container.
    """

    def containers(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
        return (
            st.lists(inner, min_size=1, max_size=3)
            | st.lists(inner, min_size=1, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
            | st.builds(Pair, inner, inner)
        )

    tree = st.recursive(leaves | others, containers, max_leaves=4)
    return (
        leaves
        | st.tuples(leaves, tree)
        | st.tuples(tree, leaves).map(list)
        | st.fixed_dictionaries({"first": leaves, "then": tree})
        | st.builds(Pair, tree, leaves)
    )


@st.composite
def modules(
    draw: DrawFn,
    features: int = 3,
    *,
    dtypes: Sequence[str] = ("float32", "float64"),
    max_layers: int = 3,
) -> Network:
    """Small networks from (batch, features) to (batch, anything), on the CPU, in training mode.

    They may have tied weights, a module that is used twice, a frozen layer and buffers; their repr
    says what they are. Parameters are -1, 0 and 1: on integers everything they compute is exact.
    Shrinks to one linear layer of one output without bias.
    """
    count = draw(st.integers(1, max_layers))
    # Half of the layers are square, so that there is something to tie.
    width = st.sampled_from((1, 2, 3, 4, *[features] * 4))
    widths = [features, *(draw(width) for _ in range(count))]
    flag = st.booleans()
    return Network(
        tuple(widths),
        bias=draw(flag),
        activation=draw(st.sampled_from(tuple(ACTIVATIONS))),
        tied=draw(flag),
        shared=draw(flag),
        frozen=draw(flag),
        buffered=draw(flag),
        dtype=draw(st.sampled_from(tuple(dtypes))),
        seed=draw(st.integers(0, 1000)),
    )
