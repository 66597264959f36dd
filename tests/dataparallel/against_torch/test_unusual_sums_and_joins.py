"""Sums and joins next to `torch.cuda.comm`'s that are out of the ordinary, bit for bit.

Repeated devices, numbers whose sums round, dtypes that differ, memory formats, results of megabytes
(which ours writes chunk by chunk), and destinations that nobody named.
"""

import pytest
import torch
import torch.cuda.comm
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import parallel as their_modules

import dataparallel
from dataparallel import comm as ours
from tests.support import strategies
from tests.support.observe import plain, values
from tests.support.oracle import described, same
from tests.support.rounding import ROUNDING, Scale, ordinary

theirs = torch.cuda.comm

REAL = ("float32", "float16", "float64", "int64")


def repeated(devices):
    """Lists of devices in which one may stand several times."""
    return st.lists(st.sampled_from(devices), min_size=2, max_size=5)


@pytest.mark.parametrize("dtype", ROUNDING)
@given(data=st.data(), seed=st.integers(0, 99))
def test_sums_add_in_their_order(devices, dtype, data, seed):
    """The order shows in numbers that round, also where several parts lie on the destination."""
    targets = data.draw(repeated(devices))
    wanted = data.draw(st.sampled_from(targets))
    parts = [p.to(t) for p, t in zip(ordinary(seed, len(targets), dtype), targets, strict=True)]
    same(lambda: ours.reduce_add(parts, wanted), lambda: theirs.reduce_add(parts, wanted.index))
    rows = [[part, part[1:] * 3] for part in parts]
    same(
        lambda: ours.reduce_add_coalesced(rows, wanted),
        lambda: theirs.reduce_add_coalesced(rows, wanted.index),
    )


@pytest.mark.devices(2, at_least=True)
@given(data=st.data(), seed=st.integers(0, 99))
def test_gradients_add_in_their_order(devices, data, seed):
    """On a list of devices with repetitions, the first of which is where the module is."""
    targets = data.draw(repeated(devices))
    targets.append(targets[0])
    rows = torch.stack(ordinary(seed, len(targets), "float32")).to(targets[0])
    found = []
    for lib in (dataparallel, their_modules):
        scale = Scale(torch.float32).to(targets[0])
        out = lib.DataParallel(scale, targets)(rows)
        out.backward(torch.ones_like(out))
        found.append(described(scale.weight.grad))
    assert found[0] == found[1]


@given(data=st.data(), names=st.lists(st.sampled_from(REAL), min_size=2, max_size=4))
def test_different_dtypes(devices, data, names):
    """The first part's in a join; the first two's in a sum, theirs where a device comes again."""
    targets = data.draw(strategies.device_lists(devices, min_size=len(names)))[: len(names)]
    names = names[: len(targets)]
    parts = [values((3,), n, k).to(t) for k, (n, t) in enumerate(zip(names, targets, strict=True))]
    wanted = data.draw(st.sampled_from(targets))
    here = [part.to(wanted) for part in parts]
    same(lambda: ours.reduce_add(here, wanted), lambda: theirs.reduce_add(here, wanted.index))
    if 1 < len(set(targets)) == len(targets) and len(set(names)) > 1:  # row 21 of the faults
        with pytest.raises(RuntimeError, match="same Tensor dtype"):
            theirs.reduce_add(parts, wanted.index)
    else:
        same(lambda: ours.reduce_add(parts, wanted), lambda: theirs.reduce_add(parts, wanted.index))
    if data.draw(st.booleans()):
        parts = [part.repeat(2**17) for part in parts]
    whole, expected = ours.gather(parts, 0, wanted), theirs.gather(parts, 0, wanted.index)
    assert (whole.dtype, whole.device) == (expected.dtype, expected.device)
    assert torch.equal(whole, expected)


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@given(
    data=st.data(),
    shape=st.lists(st.sampled_from((1, 1, 2, 3)), min_size=4, max_size=4)
    | st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=5),
    last=st.lists(st.booleans(), min_size=2, max_size=2) | st.just([True, True]),
    large=st.booleans(),
)
def test_strides_of_joins_and_sums(devices, data, shape, last, large):
    """Also of a single channel or pixel, whose strides only say which format it is."""
    targets = data.draw(strategies.device_lists(devices, min_size=2, max_size=2))
    shape = list(shape)
    if large:
        shape[data.draw(st.integers(0, len(shape) - 1))] = 2**17
    parts = []
    for k, target in enumerate(targets):
        memory = FORMATS.get(len(shape)) if last[k] else None
        part = torch.full(shape, float(k), dtype=torch.float64)
        parts.append((part.to(memory_format=memory) if memory else part).to(target))
    dim = data.draw(strategies.dims(len(shape)))
    wanted = data.draw(st.sampled_from([*targets, torch.device("cpu")]))
    number = "cpu" if wanted.type == "cpu" else wanted.index
    whole, expected = ours.gather(parts, dim, wanted), theirs.gather(parts, dim, number)
    assert (whole.shape, whole.stride()) == (expected.shape, expected.stride())
    assert torch.equal(whole, expected)
    home = data.draw(st.sampled_from(targets))
    pair = ours.reduce_add(parts, home), theirs.reduce_add(parts, home.index)
    assert pair[0].stride() == pair[1].stride()


DEFAULTS = {
    "gather": lambda comm, parts: comm.gather(parts),
    "reduce_add": lambda comm, parts: comm.reduce_add(parts),
    "reduce_add_coalesced": lambda comm, parts: comm.reduce_add_coalesced([[p] for p in parts]),
}


@pytest.mark.parametrize("name", DEFAULTS)
@given(data=st.data())
def test_the_default_is_the_current_device(devices, name, data):
    """A sum raises if none of its parts is there."""
    targets = data.draw(strategies.device_lists(devices))
    current = data.draw(st.sampled_from(targets) | st.sampled_from(devices))
    parts = [values((3,), "float32", k).to(target) for k, target in enumerate(targets)]
    call = DEFAULTS[name]
    with torch.get_device_module(current).device(current.index):
        gave = same(lambda: call(ours, parts), lambda: call(theirs, parts))
        assert gave == ("gives" if current in targets or name == "gather" else "raises")
        if gave == "gives":
            whole = call(ours, parts)
            assert (whole[0] if type(whole) is tuple else whole).device == current


def test_a_replica_on_the_first_device_has_memory_of_its_own(devices):
    """Also where a module's only tensor is a bucket by itself."""
    net = nn.Linear(3, 1, bias=False).to(devices[0])
    for detach in (False, True):
        before = plain(net.weight)
        replicas = dataparallel.replicate(net, [devices[0]] * 3, detach)
        with torch.no_grad():
            replicas[1].weight.add_(1)
            replicas[2].weight.add_(2)
        assert plain(net.weight) == plain(replicas[0].weight) == before
        assert plain(replicas[1].weight) == plain(net.weight + 1)
        assert plain(replicas[2].weight) == plain(net.weight + 2)
