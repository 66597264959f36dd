"""DistributedDataParallel's gradients on other ways: by hooks, sparse, in low precision."""

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

import simgpu
from simgpu import strategies
from tests.support.whole_batch import (
    One,
    backward,
    equal,
    gradients,
    of_whole_batch,
    parallel,
    rows,
)
from tests.support.worlds import few, schedules

pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated"),
]


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
def test_a_rank_is_only_in_the_forward_of_its_own_wrapper(count, schedule):
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


@pytest.mark.parametrize(
    "answer", [None, 3, torch.ones(2)], ids=lambda answer: type(answer).__name__
)
def test_hook_with_another_answer_is_reported(answer):
    def no_future(state, bucket):
        return answer

    def train(rank):
        ddp = parallel(One(1), rank)
        ddp.register_comm_hook(None, no_future)
        backward(ddp, rows(1, 0), 2)

    with pytest.raises(TypeError, match=f"no_future returned {type(answer).__name__}, and has to"):
        simgpu.ranks(2, train)


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

    single = [copy.deepcopy(model) for _ in range(count)]
    averager_steps = [step for step in range(steps) if step % period == 0]
    for step in range(steps):
        for rank, each in enumerate(single):
            each.zero_grad()
            each(x[rank : rank + 1]).sum().backward()
            torch.optim.SGD(each.parameters(), lr=0.5).step()
        if step in averager_steps:
            for same in zip(*(each.parameters() for each in single), strict=True):
                # As PyTorch does it: a ReLU tells a sum that is zero from one that is rounded.
                mean = sum(p.detach() / count for p in same)
                for parameter in same:
                    parameter.data = mean.clone()
    for found, each in zip(simgpu.ranks(count, train), single, strict=True):
        torch.testing.assert_close(found, [p.detach() for p in each.parameters()])


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
