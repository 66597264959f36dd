"""Sharded models: FSDP, DTensor, parts of a sequence and pipelines compute as one device does.

What they need of PyTorch takes seconds to import: tests import it, and their collection does not.
"""

import contextlib
import copy
import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import simgpu
from simgpu import strategies
from tests.support.whole_batch import WholeNumbers, of_whole_batch, rows
from tests.support.worlds import few, schedules

pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*(is|are being) deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*DTensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated"),
]


def full(tensors):
    return [tensor.full_tensor().cpu() for tensor in tensors]


@few
@given(
    count=strategies.world_sizes(1, 4),
    layers=st.booleans(),
    seed=st.integers(0, 99),
    schedule=schedules,
)
def test_fully_sharded_gradients_are_those_of_the_whole_batch(count, layers, seed, schedule):
    from torch.distributed.fsdp import fully_shard

    net, x = WholeNumbers(seed), rows(count * 2, seed)

    def train(rank):
        mine = copy.deepcopy(net).cuda()
        for layer in (mine.first, mine.last) if layers else ():
            fully_shard(layer)
        fully_shard(mine)
        for _ in range(2):
            mine.zero_grad()
            (mine(x[rank::count].cuda()).sum() * count).backward()
        return full(parameter.grad for parameter in mine.parameters())

    wanted = of_whole_batch(net, x)
    for found in simgpu.ranks(count, train, schedule=schedule):
        if count & (count - 1) == 0:  # a mean over three ranks is rounded
            assert all(map(torch.equal, found, wanted))
        else:
            torch.testing.assert_close(found, wanted)


@few
@given(
    count=strategies.world_sizes(2, 4),
    original=st.booleans(),
    between=st.booleans(),
    state=st.booleans(),
    seed=st.integers(0, 99),
)
@example(count=2, original=False, between=False, state=True, seed=0)
def test_offloaded_parameters_are_trained_as_others_are(count, original, between, state, seed):
    """FSDP1 assigns them between the CPU and the device in each step, and its state_dict does."""
    from torch.distributed.fsdp import CPUOffload, FullStateDictConfig, StateDictType
    from torch.distributed.fsdp import FullyShardedDataParallel as Sharded

    net, x = WholeNumbers(seed), rows(count * 2, seed)

    def train(rank, offload):
        options = {"device_id": rank, "use_orig_params": original}
        mine = Sharded(copy.deepcopy(net), cpu_offload=CPUOffload(offload), **options)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.125)
        for _ in range(3):
            if not between:
                optimizer.zero_grad()
            loss = mine(x[rank::count].cuda()).sum()
            if between:
                optimizer.zero_grad()
            loss.backward()
            if state:
                whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
                with Sharded.state_dict_type(mine, StateDictType.FULL_STATE_DICT, whole):
                    mine.state_dict()
            optimizer.step()
        with Sharded.summon_full_params(mine):
            return [parameter.detach().cpu().clone() for parameter in mine.parameters()]

    kept = simgpu.ranks(count, lambda rank: train(rank, False))
    offloaded = simgpu.ranks(count, lambda rank: train(rank, True))
    for one, other in zip(kept, offloaded, strict=True):
        assert all(map(torch.equal, one, other))


@few
@given(
    sizes=st.sampled_from([(4,), (2, 2), (1, 3), (3, 1)]),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    data=st.data(),
    schedule=schedules,
)
def test_redistributed_tensor_keeps_its_values(sizes, shape, data, schedule):
    """Sizes that the ranks do not divide, too: each has other shapes on the way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placed = st.sampled_from([Replicate(), Shard(0), Shard(1)])
    path = data.draw(st.lists(st.tuples(*[placed] * len(sizes)), min_size=1, max_size=4))
    whole = torch.arange(float(shape[0] * shape[1])).reshape(shape)

    def move(rank):
        mesh = init_device_mesh("cuda", sizes)
        x = distribute_tensor(whole.cuda(), mesh, path[0])
        for placements in path[1:]:
            x = x.redistribute(mesh, placements)
            assert torch.equal(x.full_tensor().cpu(), whole)
        assert all(map(torch.equal, full([x @ x.t(), x.sum(0)]), [whole @ whole.t(), whole.sum(0)]))
        return mesh

    meshes = simgpu.ranks(math.prod(sizes), move, schedule=schedule)
    assert len(set(meshes)) == len(meshes)


@few
@given(count=strategies.world_sizes(2, 4), seed=st.integers(0, 99), schedule=schedules)
def test_random_dtensors_use_the_generator_of_rank_0(count, seed, schedule):
    """Whatever seeds the ranks have: their generators are set to that of rank 0."""
    from torch.distributed import tensor
    from torch.distributed.device_mesh import init_device_mesh

    def draw(rank):
        torch.cuda.manual_seed(seed + rank)
        mesh = init_device_mesh("cuda", (count,))
        whole = tensor.rand(5, device_mesh=mesh, placements=[tensor.Replicate()]).to_local()
        generator = torch.Generator("cuda").manual_seed(seed)
        assert whole.tolist() == torch.rand(5, device="cuda", generator=generator).tolist()
        return torch.cuda.get_rng_state().tolist()

    first, *others = simgpu.ranks(count, draw, schedule=schedule)
    assert all(state == first for state in others)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipeline_has_gradients_of_the_whole_model(count, kind):
    from torch.distributed import pipelining

    net = nn.Sequential(*[nn.Linear(3, 3) for _ in range(count)]).double()
    x, y = torch.randn(6, 3).double(), torch.randn(6, 3).double()

    def train(rank):
        part = copy.deepcopy(net[rank]).cuda()
        stage = pipelining.PipelineStage(part, rank, count, torch.device("cuda", rank))
        schedule = getattr(pipelining, kind)(
            stage, n_microbatches=3, loss_fn=nn.functional.mse_loss
        )
        if rank == 0:
            schedule.step(x.cuda())
        else:
            schedule.step(target=y.cuda()) if rank == count - 1 else schedule.step()
        return [parameter.grad.cpu() for parameter in stage.submod.parameters()]

    single = copy.deepcopy(net)
    nn.functional.mse_loss(single(x), y).backward()
    for layer, found in zip(single, simgpu.ranks(count, train), strict=True):
        torch.testing.assert_close(found, [parameter.grad for parameter in layer.parameters()])


@few
@given(
    saved=strategies.world_sizes(1, 4), loaded=strategies.world_sizes(1, 4), seed=st.integers(0, 99)
)
def test_a_checkpoint_is_loaded_by_other_numbers_of_ranks(saved, loaded, seed, tmp_path_factory):
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.fsdp import fully_shard

    folder = tmp_path_factory.mktemp("checkpoint")
    net = WholeNumbers(seed)

    def save(rank):
        mine = fully_shard(copy.deepcopy(net).cuda())
        checkpoint.save(state_dict.get_model_state_dict(mine), checkpoint_id=folder)

    def load(rank):
        mine = fully_shard(WholeNumbers(seed + 1).cuda())
        state = state_dict.get_model_state_dict(mine)
        checkpoint.load(state, checkpoint_id=folder)
        state_dict.set_model_state_dict(mine, state)
        return full(mine.parameters())

    simgpu.ranks(saved, save)
    for found in simgpu.ranks(loaded, load):
        assert all(map(torch.equal, found, net.parameters()))


LENGTH = 2  # dimension 2 of queries, keys and values is the sequence


def attended(query, key, value):
    """The output of causal attention, and the gradients of a sum over it."""
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    out = nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    out.float().square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(
    ranks=st.integers(1, 4),
    heads=st.integers(1, 3),
    share=st.integers(1, 3),
    size=st.sampled_from([4, 8]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    forced=st.sampled_from([None, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]),
    seed=st.integers(0, 99),
)
def test_context_parallel_attention_equals_that_over_the_whole(
    ranks, heads, share, size, dtype, forced, seed
):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    if forced is SDPBackend.CUDNN_ATTENTION:
        size, dtype = 8, torch.bfloat16
    elif forced is not None and dtype is torch.bfloat16:
        size = 8
    if dtype is torch.float32 or forced is SDPBackend.EFFICIENT_ATTENTION:
        share = 32  # PyTorch adds up what this kernel keeps, which is padded to 32 rows

    def rank(_):
        mesh = init_device_mesh("cuda", (ranks,))
        torch.manual_seed(seed)
        shape = (1, heads, 2 * ranks * share, size)  # each rank has a part of each half
        whole = [torch.randn(shape, device="cuda").to(dtype) for _ in range(3)]
        parts = [tensor.clone() for tensor in whole]
        allowed = contextlib.nullcontext() if forced is None else sdpa_kernel(forced)
        with allowed, context_parallel(mesh, buffers=parts, buffer_seq_dims=[LENGTH] * 3):
            assert [part.shape[LENGTH] for part in parts] == [2 * share] * 3
            found = attended(*parts)
            assert found[0].shape == parts[0].shape
            joined = context_parallel_unshard(mesh, found, [LENGTH] * 4)
        for one, other in zip(joined, attended(*whole), strict=True):
            # As many roundings as there are summands, each of the size of the largest number.
            roundings = shape[LENGTH] + size
            bound = roundings * torch.finfo(dtype).eps * float(other.abs().max())
            assert float((one - other).abs().max()) <= bound

    simgpu.ranks(ranks, rank)
