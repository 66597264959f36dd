"""What PyTorch keeps in modules, once for a process: each rank that is a thread has its own."""

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
from torch.distributed.tensor.experimental._context_parallel import _attention, _sharding_rules
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.utils import checkpoint as recompute

import simgpu
from simgpu import strategies
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


def in_parts(rank, count):
    mesh = init_device_mesh("cuda", (count,))
    return context_parallel(mesh, buffers=[torch.zeros(2 * count)], buffer_seq_dims=[0])


BLOCKS = {
    "loss_parallel": lambda rank, count: loss_parallel(),
    "implicit_replication": lambda rank, count: implicit_replication(),
    "context_parallel": in_parts,
    "enable_wrap": lambda rank, count: wrap.enable_wrap(wrapper_cls=fsdp.FSDPModule, rank=rank),
    "early_stop": lambda rank, count: recompute.set_checkpoint_early_stop(False),
}


def _of_one_dim(rules):
    """How operators are sharded over one dim of a mesh, as newer releases say it."""
    return getattr(rules, "op_single_dim_strategy_funcs", {})


def seen():
    """What such blocks change."""
    dispatcher = DTensor._op_dispatcher
    rules = dispatcher.sharding_propagator
    inside = wrap._ConfigAutoWrap
    return (
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
@given(
    name=st.sampled_from(sorted(BLOCKS)),
    count=strategies.world_sizes(2, 4),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=4, max_size=4),
    seed=schedules,
)
@example(name="enable_wrap", count=2, steps=[(0, 2), (0, 1), (0, 0), (0, 0)], seed=None)
def test_a_rank_is_in_the_blocks_that_it_has_begun_and_in_no_others(name, count, steps, seed):
    before = seen()

    def go(rank):
        block, (begin, length) = BLOCKS[name](rank, count), steps[rank]
        inside = None
        with contextlib.ExitStack() as stack:
            for step in range(6):
                if step == begin:
                    stack.enter_context(block)
                    inside = seen()
                    assert inside != before
                if step == begin + length:
                    stack.close()
                    inside = None
                assert seen() == (before if inside is None else inside)
                dist.barrier(device_ids=[rank])
        assert seen() == before

    simgpu.ranks(count, go, schedule=seed)
    assert seen() == before


@few
@given(within=st.lists(st.booleans(), min_size=2, max_size=3), seed=st.integers(0, 99))
def test_a_world_shards_attention_by_its_own_rules_and_not_by_those_of_the_one_before(within, seed):
    """By those of `context_parallel` each rank attends to its own part; a ring would do more."""
    generator = torch.Generator().manual_seed(seed)
    whole = [torch.randn(2, 2, 4, 4, generator=generator) for _ in range(3)]
    wanted = functional.scaled_dot_product_attention(*whole)

    def attend(inside):
        mesh = init_device_mesh("cuda", (2,))
        parts = [distribute_tensor(x.cuda(), mesh, [Shard(2)]) for x in whole]
        parts = [part.requires_grad_() for part in parts]
        with contextlib.ExitStack() as stack:
            if inside:
                _sharding_rules.register_cp_sharding_rules()
                stack.callback(_sharding_rules.unregister_cp_sharding_rules)
            out = functional.scaled_dot_product_attention(*parts).detach()
        return out.full_tensor().cpu()

    for inside in within:
        for found in simgpu.ranks(2, lambda _, inside=inside: attend(inside)):
            assert torch.allclose(found, wanted, atol=1e-5) is not inside


def test_a_world_prints_nothing_by_itself(capfd):
    simgpu.ranks(3, lambda rank: dist.new_group([0, 1]) and None)
    assert capfd.readouterr() == ("", "")


@few
@given(count=strategies.world_sizes(1, 3), saves=st.integers(1, 3))
def test_a_checkpoint_whose_plan_is_kept_is_that_of_its_rank(count, saves):
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


def test_an_optimizer_of_fsdp1_has_a_state_on_each_rank():
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
def test_a_rank_imports_a_module_whose_default_is_the_default_group(count, name, who, seed):
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
