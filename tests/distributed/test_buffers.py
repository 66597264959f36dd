"""DistributedDataParallel's buffers, and normalization over the batch of all ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simgpu
from simgpu import strategies
from tests.support.worlds import few

pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated"),
]


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, x):
        return self.layers(x)


@few
@given(count=strategies.world_sizes(2, 5), steps=st.integers(1, 3), seed=st.integers(0, 99))
def test_parameters_and_buffers_are_equal_on_all_ranks(count, steps, seed):
    x = torch.randn(count * 4 * steps, 3, generator=torch.Generator().manual_seed(seed))

    def train(rank):
        torch.manual_seed(rank)  # DDP begins with those of rank 0
        ddp = DistributedDataParallel(Normalized().cuda(), device_ids=[rank])
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.1)
        for step in range(steps):
            optimizer.zero_grad()
            ddp(x[step::steps][rank::count].cuda()).square().mean().backward()
            optimizer.step()
        ddp.eval()
        return [t.cpu() for t in (*ddp.parameters(), *ddp.buffers())], ddp.module.layers[1]

    found = [tensors for tensors, _ in simgpu.ranks(count, train)]
    parameters = len(list(Normalized().parameters()))
    for tensors in found:
        for mine, first in zip(tensors[:parameters], found[0], strict=False):
            assert torch.equal(mine, first)


@few
@given(count=strategies.world_sizes(2, 5), seed=st.integers(0, 99), broadcast=st.booleans())
def test_buffers_are_those_of_rank_0_by_default(count, seed, broadcast):
    x = torch.randn(count * 4, 3, generator=torch.Generator().manual_seed(seed))

    def forward(rank):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(
            Normalized().cuda(), device_ids=[rank], broadcast_buffers=broadcast
        )
        ddp(x[rank::count].cuda())
        ddp(x[rank::count].cuda())
        ddp._sync_buffers() if broadcast else None
        return ddp.module.layers[1].running_mean.cpu()

    means = simgpu.ranks(count, forward)
    assert all(torch.equal(mean, means[0]) for mean in means) == broadcast


@few
@given(count=strategies.world_sizes(1, 4), affine=st.booleans(), seed=st.integers(0, 99))
def test_sync_batch_norm_is_batch_norm_of_the_whole_batch(count, affine, seed):
    x = torch.randn(count * 3 + 1, 2, 2, dtype=torch.float64, generator=torch.manual_seed(seed))
    single = nn.BatchNorm1d(2, affine=affine, dtype=torch.float64)
    whole = x.clone().requires_grad_()
    wanted = single(whole)
    (wanted**3).sum().backward()

    def normalize(rank):
        layer = nn.BatchNorm1d(2, affine=affine, dtype=torch.float64)
        sync = nn.SyncBatchNorm.convert_sync_batchnorm(layer).cuda()
        mine = x[rank::count].cuda().requires_grad_()
        out = sync(mine)
        (out**3).sum().backward()
        return out.detach().cpu(), mine.grad.cpu(), sync.running_mean.cpu(), sync.running_var.cpu()

    for rank, found in enumerate(simgpu.ranks(count, normalize)):
        here = slice(rank, None, count)
        ours = [wanted.detach()[here], whole.grad[here], single.running_mean, single.running_var]
        torch.testing.assert_close(list(found), ours)
