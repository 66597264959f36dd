"""torch.cuda.comm and torch.cuda.nccl, which nn.DataParallel calls, on simulated devices."""

import pytest
import torch
from torch.cuda import comm, nccl

import simgpu

# What NCCL is handed, made of 2 x 3 on each of two devices, and whether it takes that.
KINDS = {
    "dense": (lambda x: x, True),
    "transposed": (lambda x: x.t(), False),
    "sparse": (lambda x: x.to_sparse(), False),
    "of the host": (lambda x: x.cpu(), False),
}


def test_a_broadcast_sends_sparse_tensors_beside_dense_ones(cuda):
    tensors = [torch.eye(3), torch.ones(2), torch.diag(torch.arange(4.0))]
    sent = [x.to_sparse() if x.dim() == 2 else x for x in (x.cuda() for x in tensors)]
    rows = comm.broadcast_coalesced(sent, [0, 1, 2])
    assert [[x.device.index for x in row] for row in rows] == [[k] * 3 for k in range(3)]
    for row in rows:
        assert [x.is_sparse for x in row] == [True, False, True]
        assert [x.to_dense().tolist() for x in row] == [x.tolist() for x in tensors]


@pytest.mark.parametrize("fitting", [1, 2, 3])
def test_the_buckets_of_a_broadcast_are_full(cuda, fitting):
    """As many tensors travel in one as the limit allows, in the first bucket and the others."""
    tensors = [torch.full((4,), float(k), device="cuda") for k in range(6)]
    _, copies = comm.broadcast_coalesced(tensors, [0, 1], fitting * tensors[0].nbytes)
    assert [x.tolist() for x in copies] == [x.tolist() for x in tensors]
    assert [x.storage_offset() // 4 for x in copies] == [k % fitting for k in range(6)]


@pytest.mark.parametrize("repeated", [False, True])
def test_joined_channels_last_stays_channels_last(cuda, repeated):
    """Channels that are one, repeated, are in no order."""
    parts = [torch.ones(2, 3, 4, 5, device=cuda[k]) for k in (0, 1)]
    parts = [x.to(memory_format=torch.channels_last) for x in parts]
    if repeated:
        parts = [x[:, :1].expand(2, 3, 4, 5) for x in parts]
    joined = comm.gather(parts)
    assert joined.is_contiguous(memory_format=torch.channels_last) == (not repeated)
    assert joined.is_contiguous() == repeated


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("indices", [(0, 1), (1, 1)])
@pytest.mark.parametrize("order", ["ordered", "ring"])
def test_nccl_takes_dense_tensors_of_devices_of_their_own(cuda, kind, indices, order):
    make, taken = KINDS[kind]
    tensors = [make(torch.ones(2, 3, device=cuda[index])) for index in indices]
    with simgpu.comm.reduction(order):
        assert bool(nccl.is_available(tensors)) == (taken and indices == (0, 1) and order == "ring")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_added_by_nccl(cuda, dtype):
    """No kernel of CUDA adds it: on one device it raises."""
    parts = [torch.tensor([0.5, 16.0, -3.0], device=cuda[k]).to(dtype) for k in (0, 1, 2)]
    total = comm.reduce_add(parts, 1)
    assert (total.dtype, total.device) == (dtype, cuda[1])
    assert total.float().tolist() == [1.5, 48.0, -9.0 if dtype is torch.float8_e4m3fn else -8.0]
    with pytest.raises(NotImplementedError, match="add"):
        comm.reduce_add([part.to(cuda[0]) for part in parts], 0)
