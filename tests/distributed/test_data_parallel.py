"""DistributedDataParallel: gradients are those of the whole batch, whatever way they take."""

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
    WholeNumbers,
    backward,
    equal,
    equal_mean,
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
    model, x = WholeNumbers(seed), rows(count * each, seed)
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
    steps=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    initial=st.booleans(),
    seed=st.integers(0, 99),
    schedule=schedules,
)
def test_ranks_with_fewer_inputs_join(count, steps, initial, seed, schedule):
    """Gradients are divided by the number of all ranks, or of those that have not joined."""
    model = WholeNumbers(seed)

    def train(rank):
        ddp, done = parallel(model, rank), 0
        with ddp.join(divide_by_initial_world_size=initial):
            for _ in range(steps[rank]):
                ddp.zero_grad()
                left = sum(done < others for others in steps[:count])
                backward(ddp, rows(1, rank), count if initial else left)
                done += 1
        return done, gradients(ddp)

    found = simgpu.ranks(count, train, schedule=schedule)
    assert [done for done, _ in found] == steps[:count]
    longest = [rank for rank in range(count) if steps[rank] == max(steps[:count])]
    wanted = of_whole_batch(model, torch.cat([rows(1, rank) for rank in longest]))
    assert all(equal(found[rank][1], wanted) for rank in longest)


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


class Meeting(WholeNumbers):
    """Meets the other ranks in its forward, as synchronized normalization does."""

    def forward(self, x):
        before = DistributedDataParallel._get_active_ddp_module().module
        dist.all_reduce(torch.ones(1, device=x.device))
        assert before is self is DistributedDataParallel._get_active_ddp_module().module
        return super().forward(x)


@few
@given(count=strategies.world_sizes(), schedule=schedules)
def test_active_ddp_module_belongs_to_a_rank(count, schedule):
    """`torch.compile` asks for the wrapper, which PyTorch notes once for the process."""

    def forward(rank):
        assert DistributedDataParallel._get_active_ddp_module() is None
        parallel(Meeting(rank), rank)(rows(1, 0).cuda())

    simgpu.ranks(count, forward, schedule=schedule)
    assert DistributedDataParallel._get_active_ddp_module() is None


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_communication_hook_keeps_exact_gradients(hook, count):
    model, x = WholeNumbers(1), rows(count * 2, 1)
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
def test_hook_without_a_future_raises(answer):
    def no_future(state, bucket):
        return answer

    def train(rank):
        ddp = parallel(WholeNumbers(1), rank)
        ddp.register_comm_hook(None, no_future)
        backward(ddp, rows(1, 0), 2)

    with pytest.raises(TypeError, match=f"no_future returned {type(answer).__name__}, and has to"):
        simgpu.ranks(2, train)


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
def test_ddp_mixed_precision_has_all_gradients(count, param, reduce, view, static, seed):
    model, x = WholeNumbers(seed), rows(count, seed)
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


def test_ddp_mixed_precision_warns_of_other_gradients_on_a_gpu():
    precision = nn.parallel.distributed._MixedPrecision(param_dtype=torch.float16)
    with pytest.warns(UserWarning, match="on a GPU the gradients of the first step"):
        simgpu.ranks(1, lambda rank: parallel(WholeNumbers(0), rank, mixed_precision=precision))


def test_steps_are_not_timed_by_cpp(capfd):
    def train(rank):
        model = DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[rank])
        for _ in range(3):
            model(torch.ones(1, 2, device="cuda")).sum().backward()
        return model._get_ddp_logging_data()["module_name"]

    assert simgpu.ranks(2, train) == ["Linear", "Linear"]
    assert "Time stats" not in capfd.readouterr().err
