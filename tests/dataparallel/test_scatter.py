"""Scatter: which rows go to which device, and what a chunk is (view or copy, dtype, layout)."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import dataparallel
from tests.support import strategies
from tests.support.chunk_rule import chunk_sizes
from tests.support.observe import Case, chosen, input_of, observe, place, plain, values
from tests.support.strategies import Pair, Rows


@given(case=strategies.cases("scatter"))
@example(case=Case("scatter", slots=(0, 1, 2, 3), shape=(30, 5)))
@example(case=Case("scatter", slots=tuple(range(8)), shape=(10, 5)))
def test_sizes(devices, case):
    seen = observe(case, devices)
    n = len(chosen(case.slots, devices))
    assert seen["sizes"] == chunk_sizes(case.shape[case.dim], n)


@given(case=strategies.cases("scatter"))
def test_every_chunk_is_on_its_device(devices, case):
    seen = observe(case, devices)
    targets = chosen(case.slots, devices)
    assert seen["slots"] == [devices.index(target) for target in targets][: len(seen["slots"])]
    assert set(seen["dtypes"]) == {f"torch.{case.dtype}"}


@given(case=strategies.cases("scatter"))
def test_rows_stay_in_order_and_none_is_lost(devices, case):
    seen = observe(case, devices)
    x = input_of(case, devices)
    start = 0
    for size, shape, rows in zip(seen["sizes"], seen["shapes"], seen["values"], strict=True):
        expected = x.narrow(case.dim, start, size)
        assert shape == list(expected.shape)
        assert rows == plain(expected)
        start += size
    assert start == case.shape[case.dim]


@given(slots=strategies.device_slots(), data=st.data())
def test_balanced_chunks(devices, slots, data):
    """Sizes that differ by at most one, the larger ones first, and no device without a row."""
    targets = chosen(slots, devices)
    batch = data.draw(strategies.batches(len(targets)))
    x = values((batch, 2), "float32")
    chunks = dataparallel.scatter(x, targets, chunking="balanced")
    sizes = [len(chunk) for chunk in chunks]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert len(chunks) == (min(batch, len(targets)) or len(targets))
    assert plain(torch.cat([chunk.cpu() for chunk in chunks])) == plain(x)


@given(
    slots=strategies.device_slots(min_size=2),
    batch=st.integers(2, 20),
    source=st.sampled_from((-1, 0, 1)),
)
def test_chunks_keep_channels_last(devices, slots, batch, source):
    x = values((batch, 3, 4, 5), "float32").to(memory_format=torch.channels_last)
    chunks = dataparallel.scatter(x.to(place(source, devices)), chosen(slots, devices))
    assert all(c.is_contiguous(memory_format=torch.channels_last) for c in chunks)


@given(slots=strategies.device_slots(), data=st.data(), tree=strategies.nested())
@example(slots=(1, 0), data=None, tree=Pair(Rows((2,), "float32", 0), None))
def test_structure_is_kept(devices, slots, data, tree):
    """Containers keep their type, every tensor is cut, and anything else goes to every device."""
    targets = chosen(slots, devices)
    batch = data.draw(strategies.batches(len(targets), 30)) if data else 3
    whole = strategies.built(tree, batch)
    pieces = dataparallel.scatter(whole, targets)
    sizes = chunk_sizes(batch, len(targets))
    assert len(pieces) == len(sizes)
    start = 0
    for piece, target, size in zip(pieces, targets, sizes, strict=False):
        strategies.check_tree(piece, whole, target, slice(start, start + size))
        start += size


@given(
    slots=strategies.device_slots(),
    data=st.data(),
    source=st.sampled_from((-1, 0)),
    dim=st.sampled_from((0, 1, -1)),
)
def test_gradient_comes_back_in_order(devices, slots, data, source, dim):
    """The gradient of the input is the chunks' gradients, joined on the input's device."""
    targets = chosen(slots, devices)
    shape = [3, 3]
    shape[dim] = data.draw(strategies.batches(len(targets)))
    home = place(source, devices)
    x = values(tuple(shape), "float32").to(home).requires_grad_()
    weight = values(tuple(shape), "float32", seed=5)
    chunks = dataparallel.scatter(x, targets, dim)
    parts = weight.split([chunk.size(dim) for chunk in chunks], dim)
    products = [(c * part.to(c.device)).sum() for c, part in zip(chunks, parts, strict=True)]
    torch.autograd.backward(products)
    assert x.grad.device == home
    assert plain(x.grad) == plain(weight)


@given(
    slots=strategies.device_slots(),
    one=strategies.batches(4, 30),
    other=strategies.batches(4, 30),
    keyword=st.booleans(),
)
@example(slots=(0, 1, 2, 3), one=8, other=2, keyword=True)
def test_inputs_of_different_batches_lose_no_row(devices, slots, one, other, keyword):
    """Inputs that cannot be paired up are refused, by a text that says how long each is."""
    targets = chosen(slots, devices)
    first, second = values((one, 2), "float32"), values((other, 2), "float32")
    args, kwargs = ((first,), {"mask": second}) if keyword else ((first, second), {})
    counts = [len(chunk_sizes(batch, len(targets))) for batch in (one, other)]
    if counts[0] != counts[1]:
        with pytest.raises(ValueError, match=rf"(?s)\b({one})\b.*\b({other})\b"):
            dataparallel.scatter_kwargs(args, kwargs, targets)
        return
    calls = zip(*dataparallel.scatter_kwargs(args, kwargs, targets), strict=True)
    seen = [(call[0], kw["mask"]) if keyword else call for call, kw in calls]
    assert [sum(len(pair[side]) for pair in seen) for side in (0, 1)] == [one, other]
