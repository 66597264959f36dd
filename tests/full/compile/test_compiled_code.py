"""torch.compile in a world of threads: each rank compiles for itself, as a process does."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist
from torch._C._dynamo import eval_frame

import simgpu
from simgpu import strategies
from tests.support.worlds import few, schedules

HAS_REGIONS = hasattr(eval_frame, "set_eval_frame_isolate_recompiles_id")
apart = pytest.mark.skipif(
    not HAS_REGIONS,
    reason="this release of PyTorch keeps what is compiled in one place for all threads",
)
FOLDED = {
    "rank": lambda x: x + dist.get_rank(),
    "size": lambda x: x + dist.get_world_size(),
    "device": lambda x: x + torch.ones(2, device=f"cuda:{dist.get_rank()}").device.index,
}
# As many as one function is compiled for, by default.
DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.complex64,
)


@apart
@few
@given(
    counts=st.lists(strategies.world_sizes(), min_size=1, max_size=2),
    reported=st.sampled_from(sorted(FOLDED)),
    full=st.booleans(),
    schedule=schedules,
)
@example(counts=[2, 3], reported="size", full=True, schedule=None)
@example(counts=[2], reported="rank", full=True, schedule=None)
def test_rank_runs_code_compiled_for_it(counts, reported, full, schedule):
    """What the compiler takes for a constant is another one on each rank, and in each world."""
    with simgpu.as_cuda(max(counts)):
        compiled = torch.compile(FOLDED[reported], backend="eager", fullgraph=full)
        for count in counts:
            found = simgpu.ranks(
                count, lambda rank: compiled(torch.zeros(2)).tolist(), schedule=schedule
            )
            numbers = [count] * count if reported == "size" else range(count)
            assert found == [[number] * 2 for number in numbers]


@few
@given(schedule=schedules)
def test_ranks_do_not_reuse_code_compiled_outside_of_their_world(schedule):
    with simgpu.as_cuda(2):

        @torch.compile(backend="eager", fullgraph=True)
        def of_all(x):
            return x * dist.get_world_size() if dist.is_initialized() else -x

        one = torch.ones(())
        assert of_all(one) == -1
        assert simgpu.ranks(2, lambda rank: of_all(one).item(), schedule=schedule) == [2, 2]
        assert of_all(one) == -1


@apart
@few
@given(count=strategies.world_sizes(), times=st.integers(1, len(DTYPES)), schedule=schedules)
@example(count=4, times=len(DTYPES), schedule=None)
@example(count=2, times=len(DTYPES), schedule=0)
def test_each_rank_compiles_a_function_as_often_as_a_process_does(count, times, schedule):
    """And so often again where it is compiled apart from that."""

    def add(x):
        return x + 1

    compiled = [
        torch.compile(add, backend="eager", fullgraph=True, isolate_recompiles=single)
        for single in (False, True)
    ]

    def run(rank):
        return [
            [
                each(torch.ones(shape, dtype=dtype, device="cuda")).tolist()
                for dtype in DTYPES[:times]
            ]
            for each, shape in zip(compiled, [(2,), (1, 2)], strict=True)
        ]

    found = simgpu.ranks(count, run, schedule=schedule)
    assert found == [[[[2, 2]] * times, [[[2, 2]]] * times]] * count


@apart
@few
@given(sizes=st.permutations(range(2, 6)), schedule=schedules)
@example(sizes=[2, 3, 4, 5], schedule=None)
def test_sizes_of_other_ranks_are_no_variables(sizes, schedule):
    """A size becomes a variable of what is compiled where the rank itself has had another one."""
    graphs = []

    def keep(graph, example_inputs):
        graphs.append(any(isinstance(each, torch.SymInt) for each in example_inputs))
        return graph.forward

    @torch.compile(backend=keep, dynamic=None)
    def double(x):
        return x * 2

    simgpu.ranks(len(sizes), lambda rank: double(torch.ones(sizes[rank])), schedule=schedule)
    assert graphs == [False] * len(sizes)
