"""DistributedDataParallel: gradients are those of the whole batch, whatever way they travel.

Weights and inputs are small whole numbers and the loss is multiplied by the number of ranks, so
that sums and means over ranks are exact: gradients are compared bit for bit.
"""

import copy
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import dataparallel
import simgpu
from simgpu import strategies
from tests.support.worlds import few, schedules

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated"),
]


@pytest.fixture(scope="module", autouse=True)
def cuda_devices():
    with simgpu.as_cuda(8) as devices:
        yield devices


class Two(nn.Module):
    """Two layers of whole numbers; with `which`, one of two last layers is used."""

    def __init__(self, seed):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.last, self.other = nn.Linear(4, 2), nn.Linear(4, 2)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            values = torch.randint(-2, 3, parameter.shape, generator=generator)
            parameter.data = values.to(parameter.dtype)

    def forward(self, x, which=0):
        hidden = self.first(x).relu()
        return (self.other if which else self.last)(hidden)


class One(Two):
    """The same without the layer that may be unused."""

    def __init__(self, seed):
        super().__init__(seed)
        del self.other


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (count, 3), generator=generator).float()


def gradients(model):
    return [None if p.grad is None else p.grad.cpu().clone() for p in model.parameters()]


def of_whole_batch(model, x, **named):
    """Gradients of the sum over the whole batch, on the CPU."""
    alone = copy.deepcopy(model)
    alone(x, **named).sum().backward()
    return gradients(alone)


def equal(found, wanted):
    return all(
        b is None or (a is not None and torch.equal(a, b))
        for a, b in zip(found, wanted, strict=True)
    )


def equal_mean(found, wanted, count):
    """Exact but for seven ranks: up to eight, that is the count whose inverse does not undo it."""
    if count != 7:
        return equal(found, wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-4)
    return True


def parallel(model, rank, **options):
    return DistributedDataParallel(copy.deepcopy(model).cuda(), device_ids=[rank], **options)


def backward(model, x, size, **named):
    (model(x.cuda(), **named).sum() * size).backward()


OPTIONS = st.fixed_dictionaries(
    {
        "bucket_cap_mb": st.sampled_from([1e-6, 25]),
        "gradient_as_bucket_view": st.booleans(),
    }
)
KINDS = st.sampled_from(
    [{}, {"find_unused_parameters": True}, {"static_graph": True}, {"broadcast_buffers": False}]
)


@few
@given(
    count=strategies.world_sizes(),
    each=st.integers(1, 3),
    options=OPTIONS,
    kind=KINDS,
    seed=st.integers(0, 99),
    schedule=schedules,
    backend=st.sampled_from(["nccl", "gloo", "cpu:gloo,cuda:nccl"]),
)
def test_gradients_are_those_of_the_whole_batch(
    count, each, options, kind, seed, schedule, backend
):
    model, x = One(seed), rows(count * each, seed)
    wanted = of_whole_batch(model, x)

    def train(rank):
        ddp = parallel(model, rank, **options, **kind)
        for _ in range(2):
            ddp.zero_grad()
            backward(ddp, x[rank::count], count)
        return gradients(ddp)

    for found in simgpu.ranks(count, train, backend=backend, schedule=schedule):
        assert equal_mean(found, wanted, count)


@few
@given(
    count=strategies.world_sizes(1, 5),
    steps=st.integers(1, 3),
    options=OPTIONS,
    seed=st.integers(0, 99),
    schedule=schedules,
)
def test_no_sync_accumulates(count, steps, options, seed, schedule):
    model, x = One(seed), rows(count * (steps + 1), seed)
    wanted = of_whole_batch(model, x)

    def accumulate(rank):
        ddp = parallel(model, rank, **options)
        mine = x[rank::count]
        with ddp.no_sync():
            for row in mine[:-1]:
                backward(ddp, row[None], count)
        alone = gradients(ddp)
        backward(ddp, mine[-1:], count)
        return alone, gradients(ddp)

    for rank, (alone, found) in enumerate(simgpu.ranks(count, accumulate, schedule=schedule)):
        own = of_whole_batch(model, x[rank::count][:-1])
        assert equal(alone, [gradient * count for gradient in own])
        assert equal(found, wanted)


@few
@given(
    count=strategies.world_sizes(2, 5),
    which=st.lists(st.integers(0, 1), min_size=5, max_size=5),
    options=OPTIONS,
    seed=st.integers(0, 99),
)
def test_layers_that_some_ranks_do_not_use_are_summed_over_the_others(count, which, options, seed):
    model, x = Two(seed), rows(count, seed)
    alone = copy.deepcopy(model)
    for rank in range(count):
        alone(x[rank : rank + 1], which[rank]).sum().backward()

    def train(rank):
        ddp = parallel(model, rank, find_unused_parameters=True, **options)
        backward(ddp, x[rank : rank + 1], count, which=which[rank])
        return gradients(ddp)

    for found in simgpu.ranks(count, train):
        assert equal(found, gradients(alone))


@few
@given(
    count=strategies.world_sizes(1, 4),
    words=st.lists(st.integers(0, 4), min_size=8, max_size=8),
    seed=st.integers(0, 99),
)
def test_sparse_gradients_are_summed_by_gloo(count, words, seed):
    model = nn.Embedding(5, 3, sparse=True)
    model.weight.data = rows(5, seed)
    words = torch.tensor(words[: 2 * count])
    wanted = of_whole_batch(model, words)[0].to_dense()

    def train(rank):
        ddp = parallel(model, rank)
        backward(ddp, words[rank::count], count)
        return ddp.module.weight.grad.to_dense().cpu()

    for found in simgpu.ranks(count, train, backend="gloo"):
        assert torch.equal(found, wanted)


def own_hook(size, bucket):
    flat = bucket.buffer().div_(size)
    return dist.all_reduce(flat, async_op=True).get_future().then(lambda done: done.value()[0])


HOOKS = {
    "all_reduce": lambda ddp, size: ddp.register_comm_hook(None, default_hooks.allreduce_hook),
    "fp16": lambda ddp, size: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "bf16": lambda ddp, size: ddp.register_comm_hook(None, default_hooks.bf16_compress_hook),
    "own": lambda ddp, size: ddp.register_comm_hook(size, own_hook),
    "of C++": lambda ddp, size: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    "of C++, fp16": lambda ddp, size: ddp._register_builtin_comm_hook(
        dist.BuiltinCommHookType.FP16_COMPRESS
    ),
    "PowerSGD": lambda ddp, size: ddp.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2),
        powerSGD_hook.powerSGD_hook,
    ),
}


class Meeting(One):
    """Meets the other ranks in its forward, as synchronized normalization does."""

    def forward(self, x):
        before = DistributedDataParallel._get_active_ddp_module().module
        dist.all_reduce(torch.ones(1, device=x.device))
        assert before is self is DistributedDataParallel._get_active_ddp_module().module
        return super().forward(x)


@few
@given(count=strategies.world_sizes(), schedule=schedules)
def test_a_rank_is_in_the_forward_of_its_own_wrapper_alone(count, schedule):
    """`torch.compile` asks for the wrapper, which PyTorch notes once for the process."""

    def forward(rank):
        assert DistributedDataParallel._get_active_ddp_module() is None
        parallel(Meeting(rank), rank)(rows(1, 0).cuda())

    simgpu.ranks(count, forward, schedule=schedule)
    assert DistributedDataParallel._get_active_ddp_module() is None


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_communication_hook_changes_no_exact_gradient(hook, count):
    model, x = One(1), rows(count * 2, 1)
    wanted = of_whole_batch(model, x)

    def train(rank):
        ddp = parallel(model, rank, bucket_cap_mb=1e-6 if hook == "own" else 25)
        HOOKS[hook](ddp, count)
        backward(ddp, x[rank::count], count)
        return gradients(ddp)

    for found in simgpu.ranks(count, train):
        assert equal(found, wanted)


@few
@given(count=strategies.world_sizes(1, 4), period=st.integers(2, 3), seed=st.integers(0, 99))
def test_models_are_averaged_from_time_to_time(count, period, seed):
    """PostLocalSGD: own gradients, and a mean of the parameters after so many steps."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging import averagers
    from torch.distributed.optim import PostLocalSGDOptimizer

    model, x = One(seed), rows(count, seed)
    steps = 2 * period

    def train(rank):
        ddp = parallel(model, rank)
        state = post_localSGD_hook.PostLocalSGDState(
            None, None, 0, post_local_gradient_allreduce=False
        )
        ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        inner = torch.optim.SGD(ddp.parameters(), lr=0.5)
        averager = averagers.PeriodicModelAverager(period=period, warmup_steps=0)
        optimizer = PostLocalSGDOptimizer(inner, averager)
        for _ in range(steps):
            optimizer.zero_grad()
            ddp(x[rank : rank + 1].cuda()).sum().backward()
            optimizer.step()
        return [p.detach().cpu() for p in ddp.parameters()]

    alone = [copy.deepcopy(model) for _ in range(count)]
    averager_steps = [step for step in range(steps) if step % period == 0]
    for step in range(steps):
        for rank, each in enumerate(alone):
            each.zero_grad()
            each(x[rank : rank + 1]).sum().backward()
            torch.optim.SGD(each.parameters(), lr=0.5).step()
        if step in averager_steps:
            for same in zip(*(each.parameters() for each in alone), strict=True):
                mean = sum(p.detach() for p in same) / count
                for parameter in same:
                    parameter.data = mean.clone()
    for found, each in zip(simgpu.ranks(count, train), alone, strict=True):
        torch.testing.assert_close(found, [p.detach() for p in each.parameters()])


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
def test_buffers_are_those_of_rank_0_unless_told_otherwise(count, seed, broadcast):
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
@given(
    count=strategies.world_sizes(1, 5),
    steps=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    seed=st.integers(0, 99),
    schedule=schedules,
)
def test_ranks_with_fewer_inputs_join(count, steps, seed, schedule):
    model = One(seed)

    def train(rank):
        ddp, done = parallel(model, rank), 0
        with ddp.join():
            for _ in range(steps[rank]):
                ddp.zero_grad()
                backward(ddp, rows(1, rank), count)
                done += 1
        return done, gradients(ddp)

    found = simgpu.ranks(count, train, schedule=schedule)
    assert [done for done, _ in found] == steps[:count]
    longest = [rank for rank in range(count) if steps[rank] == max(steps[:count])]
    wanted = of_whole_batch(model, torch.cat([rows(1, rank) for rank in longest]))
    assert all(equal(found[rank][1], wanted) for rank in longest)


@few
@given(
    count=strategies.world_sizes(),
    samples=st.integers(1, 30),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_shards_cover_every_sample_once(count, samples, shuffle, drop_last, epoch):
    def shard(rank):
        sampler = DistributedSampler(range(samples), shuffle=shuffle, drop_last=drop_last)
        sampler.set_epoch(epoch)
        return list(sampler)

    shards = simgpu.ranks(count, shard)
    assert len({len(each) for each in shards}) == 1
    drawn = [index for each in shards for index in each]
    extra = len(drawn) - samples
    if drop_last and extra < 0:
        assert len(set(drawn)) == len(drawn) > samples - count
    else:
        assert set(drawn) == set(range(samples))
        assert extra < count  # the last shards are filled up with samples from the front


@few
@given(
    count=strategies.world_sizes(1, 4),
    each=st.integers(1, 3),
    options=OPTIONS,
    seed=st.integers(0, 99),
)
def test_it_is_data_parallel_in_other_words(count, each, options, seed):
    """A mean over processes, times their number, is the sum over devices of one process."""
    model, x = One(seed), rows(count * each, seed)
    devices = [torch.device("cuda", index) for index in range(count)]
    alone = dataparallel.DataParallel(copy.deepcopy(model).cuda(0), devices)
    alone(x.cuda(0)).sum().backward()

    def train(rank):
        ddp = parallel(model, rank, **options)
        backward(ddp, x.chunk(count)[rank], 1)
        return [gradient * count for gradient in gradients(ddp)]

    exact = count & (count - 1) == 0  # dividing by three is not
    for found in simgpu.ranks(count, train):
        if exact:
            assert equal(found, gradients(alone))
        else:
            torch.testing.assert_close(found, gradients(alone))


@pytest.mark.without(
    "--async",
    "--races",
    reason="with static_graph=True, PyTorch's reducer copies gradients out of their bucket without "
    "waiting for the stream on which its mixed precision divides them",
)
@few
@given(
    count=strategies.world_sizes(1, 4),
    param=st.sampled_from([torch.float16, torch.bfloat16]),
    reduce=st.sampled_from([torch.float16, torch.float32]),
    view=st.booleans(),
    static=st.booleans(),
    seed=st.integers(0, 99),
)
def test_mixed_precision_of_its_own_has_all_gradients(count, param, reduce, view, static, seed):
    model, x = One(seed), rows(count, seed)
    wanted = of_whole_batch(model, x)
    precision = nn.parallel.distributed._MixedPrecision(param_dtype=param, reduce_dtype=reduce)

    def train(rank):
        options = {"gradient_as_bucket_view": view, "static_graph": static}
        ddp = parallel(model, rank, mixed_precision=precision, **options)
        steps = []
        for _ in range(2):
            ddp.zero_grad()
            backward(ddp, x[rank : rank + 1], count)
            steps.append(gradients(ddp))
        return steps

    # Around all ranks, which are threads: one that puts the filters back takes those of another.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a GPU has other gradients in the first step
        ranks = simgpu.ranks(count, train)
    for steps in ranks:
        assert all(equal(found, wanted) for found in steps)


def test_mixed_precision_of_its_own_says_what_a_gpu_would_do():
    precision = nn.parallel.distributed._MixedPrecision(param_dtype=torch.float16)
    with pytest.warns(UserWarning, match="on a GPU the gradients of the first step"):
        simgpu.ranks(1, lambda rank: parallel(One(0), rank, mixed_precision=precision))


@few
@given(count=strategies.world_sizes(1, 4), affine=st.booleans(), seed=st.integers(0, 99))
def test_sync_batch_norm_is_batch_norm_of_the_whole_batch(count, affine, seed):
    x = torch.randn(count * 3 + 1, 2, 2, dtype=torch.float64, generator=torch.manual_seed(seed))
    alone = nn.BatchNorm1d(2, affine=affine, dtype=torch.float64)
    whole = x.clone().requires_grad_()
    wanted = alone(whole)
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
        ours = [wanted.detach()[here], whole.grad[here], alone.running_mean, alone.running_var]
        torch.testing.assert_close(list(found), ours)
