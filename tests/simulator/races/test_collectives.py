"""Collectives under `simgpu.races`: their outputs may be used once somebody has waited for them."""

import contextlib
import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

import simgpu
from simgpu import strategies
from tests.support.worlds import few

ASYNCHRONOUS = {
    "all_reduce": lambda x: torch.distributed.all_reduce(x, async_op=True),
    "broadcast": lambda x: torch.distributed.broadcast(x, 0, async_op=True),
    "all_gather": lambda x: torch.distributed.all_gather([x[:2], x[2:]], x[:2] + 0, async_op=True),
    "reduce_scatter": lambda x: torch.distributed.reduce_scatter(
        x[:2], [x[:2] + 0, x[2:] + 0], async_op=True
    ),
}


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("name", sorted(ASYNCHRONOUS))
@given(waits=st.booleans(), writes=st.booleans(), on_side_stream=st.booleans())
def test_an_output_is_used_after_its_collective_if_somebody_waits(
    name, waits, writes, on_side_stream
):
    def rank(_):
        x = torch.ones(4, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side if on_side_stream else torch.cuda.current_stream()):
            work = ASYNCHRONOUS[name](x)
            if waits:
                work.wait()
            line = x.neg_ if writes else x.neg
            line()
        work.wait()
        side.synchronize()
        return x + 1

    with simgpu.races() as found:
        simgpu.ranks(2, rank)
    lines = {(race.first.op.startswith("c10d."), race.second.op) for race in found}
    assert lines == (set() if waits else {(True, "neg_" if writes else "neg")})


@pytest.mark.parametrize("name", sorted(ASYNCHRONOUS))
@given(aside=st.booleans())
def test_a_group_keeps_an_output_until_its_collective_is_over(name, aside):
    """Whichever stream waits, and whoever lets go of the tensor then."""

    def rank(_):
        x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
        work = ASYNCHRONOUS[name](x)
        with torch.cuda.stream(side if aside else torch.cuda.current_stream()):
            work.wait()
        del x, work
        torch.cuda.memory_allocated()  # looks at what is given back
        return torch.ones(4, device="cuda")

    with simgpu.races() as found:
        simgpu.ranks(2, rank)
    assert [str(race) for race in found] == []


@contextlib.contextmanager
def ranks_that_do_not_exist():
    """This process as the first of two whose collectives do nothing."""
    store = FakeStore()
    torch.distributed.init_process_group("simgpu:fake", store=store, rank=0, world_size=2)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@given(index=st.integers(0, 2), current=st.integers(0, 2))
def test_a_collective_that_blocks_is_awaited_on_the_device_of_its_tensors(
    simulated, index, current
):
    with ranks_that_do_not_exist(), torch.simgpu.device(current), simgpu.races() as found:
        x = torch.ones(4, device=simulated[index])
        torch.distributed.all_reduce(x)
        x.neg_()
    assert found == []


@few
@given(
    net=strategies.modules().filter(lambda net: any(p.requires_grad for p in net.parameters())),
    world=st.integers(1, 3),
    batch=st.integers(1, 4),
    options=st.sampled_from(
        (
            {},
            {"static_graph": True},
            {"find_unused_parameters": True},
            {"bucket_cap_mb": 0.00001, "gradient_as_bucket_view": True},
        )
    ),
)
def test_no_network_has_races(net, world, batch, options):
    """Distributed data parallelism of ties, frozen layers and buffers; one step accumulates."""

    def rank(number):
        own = copy.deepcopy(net).cuda()
        wrapped = torch.nn.parallel.DistributedDataParallel(own, **options)
        x = torch.full((batch, 3), float(number), dtype=next(net.parameters()).dtype)
        accumulates = contextlib.nullcontext() if options else wrapped.no_sync()
        with accumulates:
            wrapped(x.cuda()).sum().backward()
        wrapped(x.cuda()).sum().backward()
        with torch.no_grad():
            for parameter in own.parameters():
                if parameter.grad is not None:
                    parameter -= parameter.grad
        return wrapped(x.cuda()).sum().item()

    with simgpu.races() as found:
        simgpu.ranks(world, rank)
    assert [str(race) for race in found] == []
