"""Writing to memory that is also read: an error, or what the CPU computes, on every device.

`x[1:].add_(x[:-1])` has no meaning that all kernels share, so PyTorch refuses it; `x.add_(x)` has.
"""

import warnings

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.observe import place, plain, values

SIZE = 8


def whole(target):
    return torch.arange(len(target), device=target.device)


IN_PLACE = {
    "add_": lambda target, source: target.add_(source),
    "addcmul_": lambda target, source: target.addcmul_(source, source),
    "copy_": lambda target, source: target.copy_(source),
    "cumsum out": lambda target, source: torch.cumsum(source, 0, out=target),
    "gather out": lambda target, source: torch.gather(source, 0, whole(target), out=target),
    "index_copy_": lambda target, source: target.index_copy_(0, whole(target), source),
    "mul out": lambda target, source: torch.mul(source, 2, out=target),
    "put": lambda target, source: target.index_put_((whole(target),), source),
    "scatter_": lambda target, source: target.scatter_(0, whole(target), source),
    "slice": lambda target, source: target.__setitem__(slice(None), source),
}


@st.composite
def pairs_of_views(draw):
    """Start and step of two views of equal length, which may or may not meet."""
    length = draw(st.integers(1, SIZE // 2))
    step = st.integers(1, 2)

    def view():
        steps = draw(step)
        start = draw(st.integers(0, SIZE - 1 - (length - 1) * steps))
        return slice(start, start + (length - 1) * steps + 1, steps)

    return view(), view()


def outcome(call, views, device, as_bytes):
    base = torch.arange(float(SIZE), device=device)
    source = base.view(torch.int32).view(torch.float32) if as_bytes else base
    try:
        call(base[views[0]], source[views[1]])
    except RuntimeError as error:
        return str(error)
    return base.tolist()


@pytest.mark.parametrize("name", IN_PLACE)
@given(views=pairs_of_views(), as_bytes=st.booleans())
@example(views=(slice(1, 5), slice(0, 4)), as_bytes=True)
def test_overlapping_memory_is_refused_as_on_the_cpu(devices, name, views, as_bytes):
    call = IN_PLACE[name]
    seen = [outcome(call, views, device, as_bytes) for device in ("cpu", devices[-1])]
    if devices[-1].type == "cuda" and (isinstance(seen[0], list) or name == "cumsum out"):
        # Its threads read and write in any order, and a scan has checks of its own.
        assert isinstance(seen[1], list) or name == "cumsum out"
    else:
        assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@given(length=st.integers(1, 4), start=st.integers(4, 7), given=st.integers(1, 4))
def test_output_in_the_storage_of_an_input_is_resized(devices, length, start, given):
    seen = []
    for device in ("cpu", devices[-1]):
        x = torch.arange(1.0, SIZE + 1, device=device)
        out = x[start : start + given]
        torch.cumsum(x[:length], 0, out=out)
        seen.append((x.tolist(), out.tolist(), out.storage_offset(), x.untyped_storage().nbytes()))
    assert seen[0] == seen[1]


GROWING = {
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "stack": lambda x, out: torch.stack([x, x, x], out=out),
    "add": lambda x, out: torch.add(x, torch.ones(3, len(x), device=x.device), out=out),
    "where": lambda x, out: torch.where(x > x.new_zeros(2, 1), x, x, out=out),
    "take": lambda x, out: torch.take(x, torch.zeros_like(x, dtype=torch.int64), out=out),
    "diag": lambda x, out: torch.diag(x, out=out),
    "outer": lambda x, out: torch.outer(x, x, out=out),
}


def view_of(data):
    start = data.draw(st.integers(0, 3))
    return slice(start, start + data.draw(st.integers(1, 4)))


def grown(name, x, out):
    with warnings.catch_warnings():  # of outputs that are resized
        warnings.simplefilter("ignore")
        return GROWING[name](x, out)


@pytest.mark.parametrize("name", GROWING)
@given(data=st.data())
def test_growing_output_may_not_share_memory_with_an_input(devices, name, data):
    """Its memory is another then, but what is read stands on it as before."""
    read, written = view_of(data), view_of(data)
    same = data.draw(st.booleans())
    seen = []
    for device in ("cpu", devices[-1]):
        base = torch.arange(1.0, SIZE + 1, device=device)
        x = base[read]
        out = x if same else base[written]
        try:
            grown(name, x, out)
            seen.append((out.tolist(), base.tolist(), base.untyped_storage().nbytes()))
        except RuntimeError as error:
            seen.append(str(error))
    if devices[-1].type == "cuda" and isinstance(seen[0], tuple):
        assert seen[1][2] == seen[0][2]  # its threads read and write in any order
    else:
        assert seen[0] == seen[1]


@given(slot=st.integers(0, 7), count=st.integers(1, 4), into=st.sampled_from(("real", "imag")))
def test_lazy_negation_counts_within_one_storage(devices, slot, count, into):
    """The imaginary part of a conjugate is a negated view of the memory that is written to."""
    expected = torch.complex(values((count,), "float32", 1), values((count,), "float32", 2))
    x = expected.to(place(slot, devices))
    for z in (expected, x):
        part = z.conj().imag
        assert part.is_neg()
        getattr(z, into).copy_(part)
        z.real.mul_(part)
    assert plain(x) == plain(expected)


@given(slot=st.integers(0, 7), at=st.integers(0, 2), shifted=st.booleans())
def test_cat_into_one_of_its_inputs_raises(devices, slot, at, shifted):
    """Whichever of its tensors is the output, or stands on its memory."""
    seen = []
    for device in ("cpu", place(slot, devices)):
        base = torch.arange(float(SIZE), device=device)
        out = base[:4]
        parts = [torch.ones(0, device=device), torch.ones(0, device=device)]
        parts.insert(at, base[1:5] if shifted else out)
        with pytest.raises(RuntimeError) as refused:
            torch.cat(parts, out=out)
        seen.append((str(refused.value), plain(base)))
    assert seen[0] == seen[1]
