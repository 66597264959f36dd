"""Memory that a kernel reaches through copies: an output without room is computed elsewhere."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

SIZE = 8

# What is `out` of before the call, made of memory for `SIZE` numbers.
BEFORE = {
    "as large": lambda x: x,
    "emptied": lambda x: x.resize_(0),
    "emptied within": lambda x: x[1:].resize_(0),
    "never any": lambda x: torch.empty(0, device=x.device),
}

CALLS = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, out.new_empty(0, dtype=torch.long))),
    # Of two outputs, the second one.
    "aminmax": lambda x, out: torch.aminmax(x[None], dim=0, out=(torch.empty_like(x), out)),
    "addbmm_": lambda x, out: out.set_(
        out.new_zeros(()).addbmm_(x.view(1, 2, -1), x.view(1, -1, 2))
    ),
}


def streams(count, device):
    made = [torch.simgpu.Stream(device) for _ in range(count)]
    torch.simgpu.synchronize(device)
    return made


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("name", sorted(CALLS))
@given(before=st.sampled_from(sorted(BEFORE)), waits=st.booleans(), writes=st.booleans())
def test_output_is_complete_after_a_wait(simulated, name, before, waits, writes):
    with simgpu.races() as races:
        x = torch.ones(SIZE, device=simulated[0])
        out = BEFORE[before](torch.ones(SIZE, device=simulated[0]))
        one, other = streams(2, simulated[0])
        with one:
            CALLS[name](x, out)
        if waits:
            other.wait_stream(one)
        with other:
            _ = out.add_(1) if writes else out + 1
        torch.simgpu.synchronize(simulated[0])
    assert any(race.first.op.startswith(name) for race in races) == (not waits)
    assert bool(races) == (not waits)


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("name", ["add", "cumsum", "sort"])
@given(before=st.sampled_from(["as large", "emptied", "emptied within"]), waits=st.booleans())
def test_an_output_takes_memory_that_is_read_elsewhere(simulated, name, before, waits):
    """As is reported for an output that has its elements."""
    with simgpu.races() as races:
        x, big = (torch.ones(SIZE, device=simulated[0]) for _ in range(2))
        x = x if before == "as large" else x[1:]
        view = big.view(SIZE)
        one, other = streams(2, simulated[0])
        with one:
            view.sum()
        out = BEFORE[before](big)
        if waits:
            other.wait_stream(one)
        with other:
            CALLS[name](x, out)
        torch.simgpu.synchronize(simulated[0])
    assert [race.second.place.rpartition(":")[0] for race in races] == [__file__] * (not waits)


@pytest.mark.without("--races", reason="races on purpose")
@given(waits=st.booleans(), shares=st.booleans())
def test_reads_through_a_copy_are_accesses(simulated, waits, shares):
    """What shares memory with an output without elements is copied, as well."""
    with simgpu.races() as races:
        big = torch.ones(SIZE, device=simulated[0])
        view = big.view(SIZE)[SIZE // 2 :]
        out = (big if shares else torch.ones(2, device=simulated[0])).resize_(0)
        one, other = streams(2, simulated[0])
        with one:
            view.add_(1)
        if waits:
            other.wait_stream(one)
        with other:
            torch.cumsum(view[:2], 0, out=out)
        torch.simgpu.synchronize(simulated[0])
    assert bool(races) == (not waits)


@given(count=st.integers(50, 60), name=st.sampled_from(["add", "cumsum", "sort"]))
def test_memory_of_copies_is_no_devices(simulated, count, name):
    """Copies of several streams may come to lie at one address."""
    with simgpu.races() as races:
        x = torch.ones(SIZE, device=simulated[0])
        outs = [torch.ones(SIZE, device=simulated[0]).resize_(0) for _ in range(count)]
        for stream, out in zip(streams(count, simulated[0]), outs, strict=True):
            with stream:
                CALLS[name](x, out)
        torch.simgpu.synchronize(simulated[0])
    assert not races
