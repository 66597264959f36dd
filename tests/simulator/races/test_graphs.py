"""A capture runs nothing: what a graph does to memory is done where it is replayed."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from tests.support.training import few


@pytest.mark.without("--races", reason="races on purpose")
@few
@given(waits=st.booleans(), warmed_up=st.booleans(), branches=st.booleans(), side=st.booleans())
@example(waits=True, warmed_up=True, branches=True, side=True)
@example(waits=False, warmed_up=False, branches=False, side=True)
@example(waits=True, warmed_up=False, branches=False, side=False)
def test_a_graph_is_in_the_order_of_its_replays(waits, warmed_up, branches, side):
    kind = torch.cuda
    with simgpu.as_cuda(1), simgpu.races() as found:
        x = torch.ones(3, device="cuda")
        main, other = kind.current_stream(), kind.Stream()
        if warmed_up:
            other.wait_stream(main)
            with kind.stream(other):
                x * 2
            main.wait_stream(other)
        graph = kind.CUDAGraph()
        with kind.graph(graph):
            capturing = kind.current_stream()
            if branches:
                branch = kind.Stream()
                branch.wait_stream(kind.current_stream())
                with kind.stream(branch):
                    x * 3
                kind.current_stream().wait_stream(branch)
            y = x * 2
        x.fill_(5)
        with kind.stream(other if side else main):
            if side and waits:
                other.wait_stream(main)
            graph.replay()
        if side and waits:
            main.wait_stream(other)
        assert y.tolist() == [10] * 3 or (side and not waits)
        graph.replay()
        del y  # its memory stays the graph's
        for stream in (main, capturing):
            with kind.stream(stream):
                torch.ones(1, device="cuda")
    assert bool(found) == (side and not waits)
    assert all(race.first.op.startswith("fill_") for race in found[:1])


@pytest.mark.without("--races", reason="races on purpose")
@few
@given(waits=st.booleans(), same=st.booleans())
@example(waits=False, same=True)
def test_a_graph_gets_no_memory_that_a_stream_gave_back(waits, same):
    """A graph allocates from memory of its own, so the stream's next allocation may get that."""
    kind = torch.cuda
    with simgpu.as_cuda(1), simgpu.races() as found:
        own, side = kind.Stream(), kind.Stream()
        with kind.stream(own):
            x, y = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
        side.wait_stream(own)
        with kind.stream(side):
            x.neg()
        del x
        kind.memory_allocated()  # looks at what is given back
        with kind.stream(own if same else kind.Stream()):
            graph = kind.CUDAGraph()
            graph.capture_begin()
            y.neg()
            graph.capture_end()
        assert found == []
        if waits:
            own.wait_stream(side)
        with kind.stream(own):
            torch.ones(1, device="cuda")
    assert [race.kind for race in found] == ["free"] * (not waits)


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_a_captured_wait_orders_nothing_else(captured, by_event):
    kind = torch.cuda
    with simgpu.as_cuda(1), simgpu.races() as found:
        x, (one, other) = torch.ones(3, device="cuda"), (kind.Stream(), kind.Stream())
        kind.synchronize()
        graph = kind.CUDAGraph()
        with kind.stream(one):
            x.fill_(2)
            if captured:
                graph.capture_begin()
                torch.ones(2, device="cuda").mul_(2)
            if by_event:
                one.record_event().wait(other)
            else:
                other.wait_stream(one)
            if captured:
                one.wait_stream(other)
                graph.capture_end()
        with kind.stream(other):
            x + 1
        kind.synchronize()
    assert len(found) == captured


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("waits", [False, True])
def test_pinned_memory_that_a_graph_writes_is_there_after_its_replay(waits):
    """Copied without an operator of PyTorch's that modes would see."""
    with simgpu.as_cuda(1), simgpu.races() as found:
        x, target = torch.ones(3, device="cuda"), torch.zeros(3).pin_memory()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            target.copy_(x, non_blocking=True)
        for _ in range(2):
            graph.replay()
            if waits:
                torch.cuda.synchronize()
            target.tolist()
    assert bool(found) != waits, found
