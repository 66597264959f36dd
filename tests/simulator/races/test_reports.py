"""How often a race is told of: once for each pair of lines, and for each operator on them."""

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu

LINES = (  # a line each
    lambda x, op: getattr(x, op)(),
    lambda x, op: getattr(x, op)(),
)


def calls(*ops):
    lines = st.sampled_from(LINES)
    return st.lists(st.tuples(lines, st.sampled_from(ops)), min_size=1, max_size=4)


def named(call):
    line, op = call
    return op, f"{__file__}:{line.__code__.co_firstlineno}"


@pytest.mark.without("--races", reason="races on purpose")
@given(reads=calls("neg", "abs"), writes=calls("neg_", "zero_"))
@example(reads=[(LINES[0], "neg"), (LINES[1], "neg")], writes=[(LINES[0], "neg_")])
@example(reads=[(LINES[0], "neg")], writes=[(LINES[0], "neg_"), (LINES[1], "neg_")])
def test_each_pair_of_lines_is_reported_once(simulated, reads, writes):
    """Each read is on a stream of its own, and all writes are on another."""
    x = torch.ones(3, device=simulated[0])
    with simgpu.races() as found:
        for line, op in reads:
            with torch.simgpu.Stream(simulated[0]):
                line(x, op)
        for line, op in writes:
            line(x, op)
    reported = [((r.first.op, r.first.place), (r.second.op, r.second.place)) for r in found]
    asked = set(itertools.product(map(named, reads), map(named, writes)))
    assert sorted(reported) == sorted(asked)


# What reads a tensor, what the report calls it, and whether pinned memory is read by no operator.
READERS = {
    "tolist": (lambda x: x.tolist(), "Tensor.tolist"),
    "numpy": (lambda x: x.numpy(), "Tensor.numpy"),
    "clone": (lambda x: x.clone(), "clone"),
    "sum": (lambda x: x.sum(), "sum"),
}


@pytest.mark.without("--races", reason="races on purpose")
@given(name=st.sampled_from(sorted(READERS)), size=st.integers(2, 5))
def test_reports_name_pinned_memory_as_the_program_does(name, size):
    read, reported = READERS[name]
    with simgpu.devices(1), simgpu.races() as found:
        x = torch.ones(size, device="simgpu:0")
        pinned = torch.zeros(size).pin_memory()
        pinned.copy_(x, non_blocking=True)
        read(pinned)
    [race] = found
    assert race.second.op == reported
    assert f"{reported} on the host reads at {__file__}" in str(race)


@pytest.mark.without("--races", reason="races on purpose")
@given(how=st.sampled_from(["tolist", "cpu", "item"]))
def test_reports_name_reads_as_the_program_does(how):
    with simgpu.devices(1), simgpu.races() as found:
        with torch.simgpu.Stream("simgpu:0"):
            x = torch.ones(1, device="simgpu:0")
        getattr(x, how)()
    assert f"{how}()" in str(found[0]).splitlines()[0]


@pytest.mark.without("--races", reason="races on purpose")
def test_a_report_keeps_the_name_under_which_it_was_found():
    with simgpu.as_cuda(1), simgpu.races() as found:
        x = torch.ones(4, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1)
        reported = str(found[0])
    assert "on cuda:0, stream" in reported
    assert str(found[0]) == reported
