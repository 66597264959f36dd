"""What NCCL is asked to carry: dense tensors on devices of their own, and nothing that it misreads.

Few machines have NCCL; here something stands in its place that adds and copies as it does, and
refuses what it would take for other numbers.
"""

import contextlib
import warnings
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

from dataparallel import comm
from dataparallel._transfer import nccl
from simgpu.comm import is_ordered, reduce_add, reduction
from tests.support import strategies
from tests.support.observe import plain, values
from tests.support.rounding import ROUNDING, check_bound, ordinary
from tests.support.training import few

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    QUANTIZED = torch.quantize_per_tensor(torch.ones(2, 3), 1.0, 0, torch.qint8)


# What becomes of a tensor of 2 x 3, and whether NCCL reads it as it is meant.
KINDS = {
    "dense": (lambda x: x, True),
    "complex": (lambda x: torch.complex(x, x + 1), True),
    "with gradient": (lambda x: x.clone().requires_grad_(), True),
    "transposed": (lambda x: x.t().contiguous().t(), False),
    "empty": (lambda x: x[:0], False),
    "sparse": (lambda x: x.to_sparse(), False),
    "conjugate": (lambda x: torch.complex(x, x + 1).conj(), False),
    "negative": (lambda x: torch.complex(x, x + 1).conj().imag.contiguous()._neg_view(), False),
}


class Library:
    """In the place of `torch.cuda.nccl`; `asked` has the name of each collective."""

    def __init__(self, there):
        self.there = there
        self.asked = []

    def is_available(self, tensors):
        return int(self.there)

    def check(self, tensors):
        assert self.there
        assert len({tensor.device for tensor in tensors}) == len(tensors) >= 2
        assert len({tensor.device.type for tensor in tensors}) == 1
        assert len({tensor.dtype for tensor in tensors}) == 1
        for tensor in tensors:
            assert tensor.layout is torch.strided
            assert tensor.is_contiguous()
            assert tensor.numel() > 0
            assert tensor.is_floating_point()
            assert not tensor.is_neg()
            assert not tensor.requires_grad

    def broadcast(self, tensors):
        self.asked.append("broadcast")
        self.check(tensors)
        for tensor in tensors[1:]:
            tensor.copy_(tensors[0])

    def reduce(self, inputs, output, root):
        self.asked.append("reduce")
        self.check(inputs)
        assert output.device == inputs[root].device
        output.copy_(sum(tensor.to(output.device) for tensor in inputs))


def library(patch, there=True, built=True):
    """One in the place of NCCL, until the patch is undone."""
    found = Library(there)
    patch.setattr(nccl, "nccl", found)
    if built:
        patch.setattr(torch._C, "_nccl_all_reduce", None, raising=False)
    else:
        patch.delattr(torch._C, "_nccl_all_reduce", raising=False)
    return found


def dense(tensor):
    """The numbers of a tensor of any kind."""
    return plain(tensor.detach().to_dense().resolve_conj().resolve_neg())


# NCCL is asked for devices that differ.
separate = pytest.mark.devices(2, distinct=True, at_least=True)

# A kind of tensor, and what keeps NCCL from the call, if anything else does.
SPOILED = ("no NCCL", "another build", "a transform", "repeated", "alone", "elsewhere")
CASES = [*((kind, "nothing") for kind in sorted(KINDS)), *(("dense", each) for each in SPOILED)]


def spoil(data, devices, patch, spoiled):
    """The devices of a call, and NCCL for it, in a block."""
    targets = data.draw(strategies.device_lists(devices, min_size=2, max_size=4))
    if spoiled == "repeated":
        targets.append(targets[-1])
    if spoiled == "alone":
        del targets[1:]
    asked = library(patch, spoiled != "no NCCL", spoiled != "another build").asked
    return targets, asked, forward_ad.dual_level() if spoiled == "a transform" else nullcontext()


@separate
@pytest.mark.parametrize(("kind", "spoiled"), CASES)
@pytest.mark.parametrize("into", [False, True])
@few
@given(data=st.data(), seed=st.integers(0, 99))
def test_broadcast_requests_memory(devices, kind, spoiled, into, data, seed):
    """From the first of the devices to others, each its own; else there are copies."""
    change, carried = KINDS[kind]
    into = into and kind != "sparse" and spoiled != "elsewhere"
    with pytest.MonkeyPatch.context() as patch:
        targets, asked, block = spoil(data, devices, patch, spoiled)
        x = values((2, 3), "float64", seed).to(targets[-1 if spoiled == "elsewhere" else 0])
        x = change(x)
        outs = [torch.zeros(x.shape, dtype=x.dtype, device=each) for each in targets[1:]]
        with block, nullcontext() if not into else torch.no_grad():
            copies = [x, *comm.broadcast(x, out=outs)] if into else comm.broadcast(x, targets)
    assert asked == ["broadcast"] * (carried and spoiled == "nothing")
    assert [copy.device for copy in copies] == targets
    assert [dense(copy) for copy in copies] == [dense(x)] * len(targets)


@separate
@pytest.mark.parametrize(("kind", "spoiled"), CASES[:-1])
@few
@given(data=st.data(), seed=st.integers(0, 99))
def test_sum_requests_memory(devices, kind, spoiled, data, seed):
    """One tensor that is not dense is enough."""
    change, carried = KINDS[kind]
    with pytest.MonkeyPatch.context() as patch:
        targets, asked, block = spoil(data, devices, patch, spoiled)
        parts = [values((2, 3), "float64", seed + k).to(each) for k, each in enumerate(targets)]
        at = data.draw(st.integers(0, len(parts) - 1))
        dtype = change(parts[0]).dtype
        for k, part in enumerate(parts):
            alike = kind in ("sparse", "empty", "complex", "with gradient") or k == at
            parts[k] = change(part) if alike else part.to(dtype)
        root = data.draw(st.sampled_from(targets))
        with block:
            total = comm.reduce_add(parts, root)
    assert asked == ["reduce"] * (carried and spoiled == "nothing")
    assert total.device == root
    assert dense(total) == plain(sum(part.detach().cpu().to_dense() for part in parts))


def test_quantized_numbers_are_copied():
    """Their scale would stay behind."""
    with pytest.MonkeyPatch.context() as patch:
        library(patch)
        there = [torch.device("cpu"), torch.device("cpu:0")]
        assert nccl.can_broadcast(torch.ones(1), there)
        assert not nccl.can_broadcast(QUANTIZED, there)


@separate
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@few
@given(data=st.data(), layout=st.sampled_from((torch.sparse_coo, torch.sparse_csr)))
def test_dense_and_sparse_numbers_are_added_by_others(devices, data, layout):
    """Of some layouts NCCL cannot even be asked."""
    targets = data.draw(strategies.device_lists(devices, min_size=2, max_size=4))
    x = values((2, 3), "float64", span=9)
    parts = [x.to(targets[0]), *(x.to(each).to_sparse(layout=layout) for each in targets[1:])]
    with pytest.MonkeyPatch.context() as patch:
        asked = library(patch).asked
        total = comm.reduce_add(parts, targets[0])
    assert (asked, dense(total)) == ([], plain(x * len(targets)))


@few
@given(data=st.data(), seed=st.integers(0, 99))
def test_numbers_of_another_dtype_are_converted(devices, data, seed):
    """NCCL would take the bytes of the one for numbers of the other."""
    targets = data.draw(strategies.device_lists(devices, min_size=2, max_size=4))
    x = values((2, 3), "float32", seed).to(targets[0])
    outs = [torch.zeros(2, 3, dtype=torch.float64, device=each) for each in targets[1:]]
    with pytest.MonkeyPatch.context() as patch:
        asked = library(patch).asked
        copies = comm.broadcast(x, out=outs)
        total = comm.reduce_add([x, *outs], targets[0])
    assert asked == []
    assert [dense(copy) for copy in copies] == [dense(x)] * len(outs)
    assert dense(total) == dense(x * len(targets))


def test_devices_of_two_types_are_not_one_library(devices):
    x = torch.ones(3, device=devices[0])
    with pytest.MonkeyPatch.context() as patch:
        asked = library(patch).asked
        copies = comm.broadcast(x, [devices[0], "cpu"])
    assert asked == []
    assert plain(copies[1]) == [1, 1, 1]


@separate
@pytest.mark.parametrize("repeated", [False, True])
@few
@given(data=st.data(), count=st.integers(1, 3))
def test_buckets_are_carried_too(devices, repeated, data, count):
    """One for each dtype; a device that is named twice has no way but copies."""
    targets = data.draw(strategies.device_lists(devices, min_size=2, max_size=4))
    targets += targets[:1] * repeated
    tensors = [values((k + 1, 3), "float32", k).to(targets[0]) for k in range(count)]
    tensors += [values((2,), "float64").to(targets[0])]
    with pytest.MonkeyPatch.context() as patch:
        asked = library(patch).asked
        rows = comm.broadcast_coalesced(tensors, targets)
        sums = comm.reduce_add_coalesced(rows, targets[0])
    assert asked == ["broadcast"] * 2 * (not repeated) + ["reduce"] * 2 * (not repeated)
    assert [[dense(copy) for copy in row] for row in rows] == [[dense(t) for t in tensors]] * len(
        targets
    )
    assert [dense(total) for total in sums] == [dense(t * len(targets)) for t in tensors]


MODELS = ("ordered", "ring", "tree", "random")


@pytest.fixture
def asked(monkeypatch):
    """The sums that NCCL was asked for."""
    found = []
    reduce = nccl.reduce
    monkeypatch.setattr(nccl, "reduce", lambda *args: found.append(args) or reduce(*args))
    return found


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_asked_and_peer_copies_are_not(simulated, asked, model):
    parts = [torch.ones(3, device=device) for device in simulated[:4]]
    before = len(asked)  # under --schedules the test runs many times, and its fixtures once
    with reduction(model):
        assert plain(comm.reduce_add(parts, simulated[0])) == [4, 4, 4]
    assert len(asked) - before == (model != "ordered")


@given(
    names=st.lists(st.sampled_from(MODELS), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    fails=st.booleans(),
)
def test_blocks_nest(names, seed, fails):
    """Within, the innermost counts; the outer one goes on where it was, after an error too."""
    parts = ordinary(seed, 6, "float16")

    def sums(rest):
        if not rest:
            if fails:
                raise KeyError
            return []
        with reduction(rest[0], seed):
            before, between = plain(reduce_add(parts)), []
            with contextlib.suppress(KeyError):
                between = sums(rest[1:])
            return [before, *between, plain(reduce_add(parts))]

    def single(name):
        with reduction(name, seed):
            return [plain(reduce_add(parts)) for _ in range(2)]

    expected = [single(name) for name in names]
    firsts, seconds = ([pair[k] for pair in expected] for k in range(2))
    assert sums(names) == [*firsts, *reversed(seconds)]
    assert is_ordered()


@pytest.mark.parametrize("model", MODELS)
@given(data=st.data(), seed=st.integers(0, 99))
def test_exact_sums_are_bitwise(simulated, model, data, seed):
    targets = data.draw(strategies.device_lists(simulated))
    dtype = data.draw(st.sampled_from(("float32", "float16", "bfloat16", "int32", "complex64")))
    parts = [values((5, 3), dtype, seed + k, span=9) for k in range(len(targets))]
    placed = [part.to(target) for part, target in zip(parts, targets, strict=True)]
    wanted = data.draw(st.sampled_from(targets))
    with reduction(model, seed):
        total = comm.reduce_add(placed, wanted)
    assert total.device == wanted
    assert plain(total) == plain(sum(parts))
    assert [plain(part) for part in placed] == [plain(part) for part in parts]


@pytest.mark.parametrize("dtype", ROUNDING)
@given(data=st.data(), model=st.sampled_from(MODELS), seed=st.integers(0, 99))
def test_other_sums_keep_the_rounding_bound(simulated, dtype, data, model, seed):
    targets = data.draw(strategies.device_lists(simulated))
    parts = ordinary(seed, len(targets), dtype)
    placed = [part.to(target) for part, target in zip(parts, targets, strict=True)]
    with reduction(model, seed):
        check_bound(comm.reduce_add(placed, targets[0]), parts)


def test_the_models_add_in_different_orders(simulated):
    """Else the two properties above would be about one order only."""
    sums = set()
    parts = [part.to(d) for part, d in zip(ordinary(3, 8, "float16"), simulated, strict=True)]
    for model in MODELS:
        with reduction(model, seed=1):
            sums.add(tuple(plain(comm.reduce_add(parts, simulated[0]))))
    assert len(sums) == len(MODELS)
