"""Sums and copies of many tensors: what stays as it was, without a graph, and unbucketed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from dataparallel import comm
from tests.support import strategies
from tests.support.observe import plain, values


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
