"""What NCCL is asked to carry: dense tensors on devices of their own, and nothing that it misreads.

Few machines have NCCL; here something stands in its place that adds and copies as it does, and
refuses what it would take for other numbers.
"""

import warnings
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

from dataparallel import comm
from dataparallel._transfer import nccl
from tests.support import strategies
from tests.support.observe import plain, values
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
