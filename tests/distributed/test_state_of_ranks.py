"""State that PyTorch keeps once for a process: each rank that is a thread has its own.

Blocks that change it, settings without a block, and what modules keep from call to call.
"""

import contextlib
import importlib
import inspect
import sys
import tempfile
import warnings
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist
from torch.distributed import checkpoint, fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import wrap
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel, implicit_replication
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint as recompute

import simgpu
from simgpu import strategies
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


@contextlib.contextmanager
def set_for_a_while(read, write, value):
    before = read()
    write(value)
    yield
    write(before)


def dtype(value):
    return set_for_a_while(torch.get_default_dtype, torch.set_default_dtype, value)


def deterministic(value):
    return set_for_a_while(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda pair: torch.use_deterministic_algorithms(pair[0], warn_only=pair[1]),
        value,
    )


def precision(value):
    read, write = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    return set_for_a_while(read, write, value)


def in_parts(value):
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    buffer = torch.zeros(2 * dist.get_world_size())
    return context_parallel(mesh, buffers=[buffer], buffer_seq_dims=[0])


def wrapping(value):
    return wrap.enable_wrap(wrapper_cls=fsdp.FSDPModule, rank=dist.get_rank())


# With the values that a rank may choose from, the first of which is not the usual one.
BLOCKS = {
    "dtype": (dtype, [torch.float64, torch.float16, torch.float32]),
    "deterministic": (deterministic, [(True, True), (True, False), (False, False)]),
    "precision": (precision, ["high", "medium", "highest"]),
    "anomaly": (lambda value: torch.autograd.set_detect_anomaly(*value), [(True,), (True, False)]),
    "cudnn": (
        lambda value: torch.backends.cudnn.flags(value[0], value[1], deterministic=value[2]),
        [(False, False, False), (True, True, False), (True, False, True)],
    ),
    "mkldnn": (lambda value: torch.backends.mkldnn.flags(enabled=value), [False, True]),
    "attention": (sdpa_kernel, [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]),
    "order of attention": (
        lambda value: sdpa_kernel(value, set_priority=True),
        [[SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], [SDPBackend.CUDNN_ATTENTION]],
    ),
    "order of sums": (simgpu.comm.reduction, ["ring", "tree", "random", "ordered"]),
    "loss_parallel": (lambda value: loss_parallel(), [None]),
    "implicit_replication": (lambda value: implicit_replication(), [None]),
    "context_parallel": (in_parts, [None]),
    "enable_wrap": (wrapping, [None]),
    "early_stop": (recompute.set_checkpoint_early_stop, [False]),
}


def _of_one_dim(rules):
    """How operators are sharded over one dim of a mesh, as newer releases say it."""
    return getattr(rules, "op_single_dim_strategy_funcs", {})


def seen():
    """What these blocks change."""
    dispatcher = DTensor._op_dispatcher
    rules = dispatcher.sharding_propagator
    inside = wrap._ConfigAutoWrap
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark),
        (torch.backends.cudnn.deterministic, torch.backends.mkldnn.enabled),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch._C._get_sdp_priority_order(),
        simgpu.comm.current(),
        sorted(map(str, dispatcher._custom_op_handlers)),
        dispatcher._allow_implicit_replication,
        functional.scaled_dot_product_attention,
        [rules.op_strategy_funcs.get(operator) for operator in _attention.custom_ops],
        [_of_one_dim(rules).get(operator) for operator in _attention.custom_ops],
        [rules.op_to_schema_info.get(operator) for operator in _attention.custom_ops],
        _attention._cp_options.enable_load_balance,
        (inside.in_autowrap_context, inside.wrapper_cls, dict(inside.kwargs)),
        recompute._enable_checkpoint_early_stop,
    )


@few
@pytest.mark.filterwarnings("ignore:TF32 acceleration", "ignore:Anomaly Detection")
@pytest.mark.parametrize("name", BLOCKS)
@given(
    count=strategies.world_sizes(2, 4),
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=4, max_size=4
    ),
    seed=schedules,
)
@example(count=3, steps=[(0, 0, 1), (1, 0, 2), (2, 1, 2)], seed=None)
@example(count=2, steps=[(0, 0, 0), (1, 0, 1)], seed=0)
def test_block_changes_nothing_for_other_ranks(name, count, steps, seed):
    """Nor after it, nor for who comes after the world."""
    before = seen()
    block, values = BLOCKS[name]

    def go(rank):
        choice, begin, length = steps[rank]
        value, found = values[choice % len(values)], []

        def wait(times):
            for _ in range(times):
                dist.barrier(device_ids=[rank])
                found.append(seen())

        wait(begin)
        with block(value):
            inside = seen()
            assert inside != before or choice % len(values)
            wait(length)
        wait(4 - begin - length)
        assert found == [before] * begin + [inside] * length + [before] * (4 - begin - length)

    simgpu.ranks(count, go, schedule=seed)
    assert seen() == before


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_precision_set_by_its_newer_name_belongs_to_a_rank():
    """PyTorch does not answer by its older name then. Each rank has its own, as has the caller."""
    newer = torch.backends.cuda.matmul
    if not hasattr(newer, "fp32_precision"):
        pytest.skip("this release has no newer name")
    before = newer.fp32_precision

    def go(rank):
        if rank == 0:
            newer.fp32_precision = "tf32"
        for _ in range(2):
            dist.barrier(device_ids=[rank])
        return newer.fp32_precision

    assert simgpu.ranks(2, go) == ["tf32", before]
    assert newer.fp32_precision == before
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@given(st.integers(2, 4), st.data())
def test_each_rank_has_a_default_tensor_type(count, data):
    kinds = data.draw(st.lists(st.sampled_from(["", "cuda."]), min_size=count, max_size=count))

    def rank(number):
        torch.cuda.set_device(number)
        torch.set_default_tensor_type(f"torch.{kinds[number]}FloatTensor")
        dist.barrier(device_ids=[number])
        made = torch.Tensor(2).device
        dist.barrier(device_ids=[number])
        return made

    of_kind = {"": lambda _: torch.device("cpu"), "cuda.": lambda n: torch.device("cuda", n)}
    found = simgpu.ranks(count, rank, schedule=data.draw(schedules))
    assert found == [of_kind[kind](number) for number, kind in enumerate(kinds)]
    assert torch.ones(1).device == torch.device("cpu")


@few
@given(
    within=st.lists(st.booleans(), min_size=2, max_size=3),
    anew=st.booleans(),
    seed=st.integers(0, 99),
)
@example(within=[True, True], anew=True, seed=0)
def test_attention_is_sharded_by_the_rules_of_its_world(within, anew, seed):
    """By those of `context_parallel` each rank attends to its own part; a ring would do more.

    Also where the module that has the rules is imported `anew` between worlds.
    """
    name = f"{_attention.__package__}._sharding_rules"
    generator = torch.Generator().manual_seed(seed)
    whole = [torch.randn(2, 2, 4, 4, generator=generator) for _ in range(3)]
    wanted = functional.scaled_dot_product_attention(*whole)

    def attend(inside):
        mesh = init_device_mesh("cuda", (2,))
        parts = [distribute_tensor(x.cuda(), mesh, [Shard(2)]) for x in whole]
        parts = [part.requires_grad_() for part in parts]
        with contextlib.ExitStack() as stack:
            if inside:
                rules = importlib.import_module(name)
                rules.register_cp_sharding_rules()
                dist.barrier(device_ids=[dist.get_rank()])
                stack.callback(rules.unregister_cp_sharding_rules)
            out = functional.scaled_dot_product_attention(*parts).detach()
        return out.full_tensor().cpu()

    for inside in within:
        for found in simgpu.ranks(2, lambda _, inside=inside: attend(inside)):
            assert torch.allclose(found, wanted, atol=1e-5) is not inside
        if anew:
            sys.modules.pop(name, None)


@few
@given(count=strategies.world_sizes(1, 3), saves=st.integers(1, 3))
def test_kept_plan_of_a_checkpoint_belongs_to_a_rank(count, saves):
    whole = torch.arange(4.0 * count)

    def state(rank, add):
        mesh = init_device_mesh("cuda", (count,))
        spread = distribute_tensor((whole + add).cuda(), mesh, [Shard(0)])
        return {"spread": spread, f"own {rank}": torch.full((rank + 1,), rank + add)}

    def save(rank):
        for step in range(saves):
            writer = checkpoint.FileSystemWriter(f"{folder}/{step}")
            planner = checkpoint.DefaultSavePlanner(enable_plan_caching=True)
            checkpoint.save(state(rank, 10.0 * step), storage_writer=writer, planner=planner)
        for step in range(saves):
            found = state(rank, -1.0)
            checkpoint.load(found, checkpoint_id=f"{folder}/{step}")
            assert torch.equal(found["spread"].full_tensor().cpu(), whole + 10.0 * step)
            assert found[f"own {rank}"].tolist() == [rank + 10.0 * step] * (rank + 1)

    with tempfile.TemporaryDirectory() as folder:
        simgpu.ranks(count, save)


def test_fsdp1_optimizer_has_state_on_each_rank():
    def state(rank):
        model = fsdp.FullyShardedDataParallel(torch.nn.Linear(3, 2).cuda(), device_id=rank)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        sharded = fsdp.StateDictType.SHARDED_STATE_DICT
        with fsdp.FullyShardedDataParallel.state_dict_type(model, sharded):
            return sorted(fsdp.FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that FSDP1 is old
        assert simgpu.ranks(2, state) == [["bias", "weight"]] * 2


OF_THE_DEFAULT_GROUP = {
    "torch.distributed.nn.functional": ("all_reduce", "group"),
    "torch.distributed.fsdp.sharded_grad_scaler": ("ShardedGradScaler", "process_group"),
}


@pytest.mark.parametrize("name", OF_THE_DEFAULT_GROUP)
@few
@given(count=strategies.world_sizes(2, 4), who=st.integers(0, 3), seed=schedules)
def test_default_group_in_signatures_belongs_to_a_rank(count, name, who, seed):
    function, argument = OF_THE_DEFAULT_GROUP[name]

    def ask(rank):
        if rank == who % count:
            del sys.modules[name]
            importlib.import_module(name)
        dist.barrier(device_ids=[rank])
        module = importlib.import_module(name)
        default = inspect.signature(getattr(module, function)).parameters[argument].default
        assert default in (None, dist.group.WORLD)

    package = importlib.import_module(name.rpartition(".")[0])
    last = name.rpartition(".")[2]
    kept = mock.patch.object(package, last, importlib.import_module(name))
    with mock.patch.dict(sys.modules), kept:
        simgpu.ranks(count, ask, schedule=seed)
