"""Tensors of any layout share buckets, and arrive with their values and the strides promised.

Sums and copies of many: what stays as it was, without a graph, and unbucketed.
"""

import inspect
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from dataparallel import comm
from dataparallel._transfer import buckets
from tests.support import strategies
from tests.support.observe import plain, values

DTYPES = ("float32", "float64", "int64", "complex64")


def dims_as_they_lie(tensor):
    """The strides that matter: of dimensions with more than one entry."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


KINDS = ("contiguous", "contiguous", "permuted", "gaps", "part", "flagged")


@st.composite
def laid_out(draw, device, kinds=KINDS):
    """A tensor of small integers, dense in some order of its dimensions, or with gaps, or flagged.

    Sizes of one and zero are frequent, and so are tensors that differ only in their first size.
    """
    shape = [draw(st.integers(0, 4)), *draw(st.sampled_from(((), (), (1,), (3,), (3, 2), (2, 1))))]
    kind = draw(st.sampled_from(kinds))
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 99))
    if kind == "gaps":
        return values((*shape, 2), dtype, seed, span=9).to(device)[..., 0]
    if kind == "part":
        return values((*shape[:-1], shape[-1] + 2), dtype, seed, span=9).to(device)[..., 1:-1]
    whole = values(tuple(shape), dtype, seed, span=9).to(device)
    if kind == "permuted":
        return whole.permute(draw(st.permutations(range(len(shape)))))
    if kind == "flagged" and whole.is_complex():
        return whole.conj().imag if draw(st.booleans()) else whole.conj()
    return whole


def check(result, source, expected):
    assert plain(result) == expected
    assert (result.dtype, result.shape) == (source.dtype, source.shape)
    if source.numel():
        dense = source if _is_dense(source) else source.contiguous()
        assert dims_as_they_lie(result) == dims_as_they_lie(dense)


def _is_dense(tensor):
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    order = [dim for dim in order if tensor.size(dim) > 1]
    return tensor.permute(
        [*(dim for dim in range(tensor.dim()) if dim not in order), *order]
    ).is_contiguous()


@given(data=st.data())
def test_copies_and_sums_of_any_layouts(devices, data):
    targets = data.draw(strategies.device_lists(devices, max_size=3))  # one, too
    limit = data.draw(st.sampled_from((1, 48, 10 << 20)))
    # Of one kind, since a bucket of nothing else may be handled in another way.
    kinds = data.draw(
        st.sampled_from((KINDS, KINDS, ("permuted",), ("gaps",), ("contiguous", "flagged")))
    )
    tensors = data.draw(st.lists(laid_out(targets[0], kinds), min_size=1, max_size=8))
    rows = comm.broadcast_coalesced(tensors, targets, limit)
    assert all(one is other for one, other in zip(rows[0], tensors, strict=True))
    for row, target in zip(rows[1:], targets[1:], strict=True):
        for copy, source in zip(row, tensors, strict=True):
            assert copy.device == target
            check(copy, source, plain(source))
    sums = comm.reduce_add_coalesced(rows, targets[0], limit)
    for total, source in zip(sums, tensors, strict=True):
        check(total, source, plain(source * len(targets)))


@given(
    data=st.data(),
    shape=st.sampled_from(((2,), (2, 3), (), (0, 3), (2, 0))),
    dtype=st.sampled_from(DTYPES),
    turned=st.booleans(),
)
def test_tensors_of_one_shape_keep_their_own_values(devices, data, shape, dtype, turned):
    """Enough tensors of one shape that they are cut out of the bucket together."""
    targets = data.draw(strategies.device_lists(devices, min_size=2, max_size=3))
    count = data.draw(st.integers(2, 9))
    if turned:  # they lie in another order than their sizes say
        tensors = [values((2, 3), dtype, seed, span=9).to(targets[0]).t() for seed in range(count)]
    else:
        tensors = [values(shape, dtype, seed, span=9).to(targets[0]) for seed in range(count)]
    copies = comm.broadcast_coalesced(tensors, targets)[-1]
    expected = [plain(tensor) for tensor in tensors]
    assert [plain(copy) for copy in copies] == expected
    versions = [copy._version for copy in copies]
    changed = data.draw(st.integers(0, count - 1))
    copies[changed].sub_(1)
    expected[changed] = plain(tensors[changed] - 1)
    assert [plain(copy) for copy in copies] == expected
    assert [copy._version - version for copy, version in zip(copies, versions, strict=True)] == [
        int(index == changed) for index in range(count)
    ]


@pytest.mark.parametrize("rest", [-1, 0, 1])
def test_buckets_are_as_large_as_those_of_torch(rest):
    """As its `broadcast_coalesced` says, whose sums ours equal to the bit."""
    stock = inspect.signature(torch.nn.parallel.comm.broadcast_coalesced).parameters["buffer_size"]
    numbers = stock.default // 4
    tensors = [torch.empty(n, device="meta") for n in (7, numbers - 7 + rest)]
    assert len(buckets.lay_out(tensors).buckets) == (2 if rest == 1 else 1)


shapes = st.lists(st.integers(0, 4), max_size=4) | st.permutations((1, 2, 3, 4))


@given(shape=shapes, gap=st.integers(2, 3))
def test_a_tensor_with_gaps_has_the_strides_of_a_contiguous_one(shape, gap):
    """Of size one in some dimensions, or empty, too."""
    stride = [gap * step for step in torch.empty(shape, device="meta").stride()]
    tensor = torch.empty_strided(shape, stride, device="meta")
    ((slot,),) = buckets.lay_out([tensor]).buckets
    wanted = tensor if tensor.is_contiguous() else torch.empty(shape, device="meta")
    assert (slot.size, tuple(slot.stride), slot.order) == (wanted.shape, wanted.stride(), None)


@given(shape=shapes, data=st.data())
def test_a_dense_tensor_keeps_its_strides(shape, data):
    order = data.draw(st.permutations(range(len(shape))))
    dense = torch.empty(shape, device="meta").permute(order)
    # Whatever the strides are of dimensions with one entry.
    stride = [
        data.draw(st.integers(1, 99)) if size == 1 else step
        for size, step in zip(dense.shape, dense.stride(), strict=True)
    ]
    tensor = torch.empty_strided(dense.shape, stride, device="meta")
    ((slot,),) = buckets.lay_out([tensor]).buckets
    assert tensor.is_contiguous() == (slot.order is None) or not tensor.numel()
    if slot.order is not None and tensor.numel():
        assert slot.stride == tensor.stride()
        assert tensor.permute(slot.order).is_contiguous()


def bytes_of(slots, dtype):
    return sum(slot.elements() for slot in slots) * dtype.itemsize


@given(data=st.data(), limit=st.sampled_from((1, 16, 48, 10 << 20)))
def test_every_tensor_has_a_place_and_buckets_are_filled(data, limit):
    """Those without strides travel by themselves, in their order; others one after the other."""
    tensors = data.draw(st.lists(laid_out("cpu"), max_size=8))
    for at in sorted(data.draw(st.sets(st.integers(0, len(tensors))))):
        tensors.insert(at, torch.ones(2, at % 3 + 1).to_sparse())
    layout = buckets.lay_out(tensors, limit)
    sparse = [number for number, tensor in enumerate(tensors) if tensor.is_sparse]
    assert (layout.total, layout.unbucketed) == (len(tensors), sparse)
    dense = [slot.number for bucket in layout.buckets for slot in bucket]
    assert sorted(dense + sparse) == list(range(len(tensors)))
    last = {}  # by dtype, the bucket before
    for bucket in layout.buckets:
        real = {torch.complex64: torch.float32}
        dtypes = {tensors[slot.number].dtype for slot in bucket}
        (dtype,) = {real.get(each, each) for each in dtypes}
        for at, slot in enumerate(bucket):
            assert slot.offset == sum(each.elements() for each in bucket[:at])
            assert slot.paired == tensors[slot.number].is_complex()
        assert len(bucket) == 1 or bytes_of(bucket[:-1], dtype) <= limit
        kinds = itertools.groupby((each.paired, each.size[1:]) for each in bucket)
        assert len(alike := [kind for kind, _ in kinds]) == len({*alike})  # next to each other
        filled = sum(bool(slot.elements()) for slot in bucket)
        assert filled <= 1 or bytes_of(bucket, dtype) <= limit
        if dtype in last:
            assert bytes_of([*last[dtype], bucket[0]], dtype) > limit
        last[dtype] = bucket


@given(data=st.data())
def test_a_part_of_a_layout_has_the_same_tensors_closed_up(data):
    tensors = data.draw(st.lists(laid_out("cpu"), max_size=8)) + [torch.eye(2).to_sparse()] * 2
    layout = buckets.lay_out(tensors, 48)
    wanted = data.draw(st.sets(st.sampled_from(range(len(tensors)))))
    part = buckets.subset(layout, sorted(wanted))
    assert part.unbucketed == [number for number in layout.unbucketed if number in wanted]
    kept = [[slot for slot in bucket if slot.number in wanted] for bucket in layout.buckets]
    assert [[slot.number for slot in bucket] for bucket in part.buckets] == [
        [slot.number for slot in slots] for slots in kept if slots
    ]
    for bucket in part.buckets:
        for at, slot in enumerate(bucket):
            assert slot.offset == sum(each.elements() for each in bucket[:at])


@pytest.mark.devices(2)
def test_results_are_cut_off_from_autograd(devices):
    tensors = [values((4,), "float64", k).to(devices[0]).requires_grad_() for k in range(5)]
    tensors += [values((3, 2), "float64").to(devices[0]).t().requires_grad_()]
    rows = comm.broadcast_coalesced(tensors, devices[:2])
    assert all(one is other for one, other in zip(rows[0], tensors, strict=True))
    others = [t.detach().to(devices[1]).requires_grad_() for t in tensors]
    for result in (*rows[1], *comm.reduce_add_coalesced([tensors, others], devices[0])):
        assert not result.requires_grad


@pytest.mark.filterwarnings("ignore::UserWarning")  # of prototypes, and of what is deprecated
def test_tensors_without_strides_are_not_coalesced():
    """Quantized, nested and sparse tensors, beside others of one bucket."""
    quantized = torch.quantize_per_tensor(torch.arange(6.0), 0.5, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    sparse = torch.eye(3).to_sparse()
    tensors = [torch.ones(3), quantized, nested, torch.ones(2, 2), sparse]
    copies = comm.broadcast_coalesced(tensors, ["cpu", "cpu"])[1]
    for copy, tensor in zip(copies, tensors, strict=True):
        assert copy is not tensor
        assert (copy.layout, copy.dtype, copy.is_nested) == (
            tensor.layout,
            tensor.dtype,
            tensor.is_nested,
        )
    assert copies[1].dequantize().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert [part.tolist() for part in copies[2].unbind()] == [
        part.tolist() for part in nested.unbind()
    ]
    assert copies[4].to_dense().tolist() == torch.eye(3).tolist()


@pytest.mark.devices(2)
def test_outputs_come_as_a_tuple(devices):
    """Of one kind of device, which may be the CPU."""
    x = values((4, 3), "float32", 1)
    for targets in (devices[:2], [torch.device("cpu")] * 2):
        outs = [torch.empty(2, 3, device=device) for device in targets]
        whole = [torch.empty(4, 3, device=device) for device in targets]
        for results in (
            comm.scatter(x, out=outs),
            comm.scatter(x, targets),
            comm.broadcast(x, out=whole),
            comm.broadcast(x, targets),
        ):
            assert type(results) is tuple
            assert [result.device for result in results] == targets
        assert plain(comm.gather(outs)) == plain(whole[1]) == plain(x)
    assert comm.broadcast(x, ()) == comm.broadcast(x, out=()) == ()


class Ragged(nn.Module):
    """Has a buffer of rows of different lengths."""

    def __init__(self):
        super().__init__()
        rows = [torch.ones(2, 3), torch.full((1, 3), 2.0)]
        self.register_buffer("rows", torch.nested.nested_tensor(rows))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight + sum(part.sum() for part in self.rows.unbind())


@pytest.mark.devices(2)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_a_nested_buffer_reaches_every_replica(devices, cached):
    net = Ragged().to(devices[0])
    parallel = dataparallel.DataParallel(net, devices[:2], cache_parameters=cached)
    x = values((4, 3), "float32", 1).to(devices[0])
    for grad in (False, False, True):
        with torch.set_grad_enabled(grad):
            assert plain(parallel(x)) == plain(x + 12)


@given(data=st.data(), batched=st.integers(0, 7))
def test_sum_of_one_batched_column_and_plain_ones(devices, data, batched):
    """In the backward pass of a custom function, whose gradients are batched on one device only."""
    targets = data.draw(strategies.device_lists(devices))
    batched %= len(targets)

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            ones = torch.ones(2, dtype=grad.dtype)
            rows = [[ones.to(to), ones.to(to)] for to in targets]
            rows[batched] = [grad.to(targets[batched]), 2 * grad.to(targets[batched])]
            return sum(comm.reduce_add_coalesced(rows, targets[0]))

    x = torch.ones(2, dtype=torch.float64, device=targets[0], requires_grad=True)
    seeds = values((3, 2), "float64", span=9).to(targets[0])
    (found,) = torch.autograd.grad(Summed.apply(x), x, seeds, is_grads_batched=True)
    assert plain(found) == plain(3 * seeds + 2 * (len(targets) - 1))
