"""What a race is: bytes that an operator touches, also through copies, and how it is reported."""

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu._explore.races.accesses import share_bytes, span_of, tensor_arguments, tensors_of

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


MEMORY = torch.zeros(64, dtype=torch.uint8)


@st.composite
def views(draw):
    dtype = draw(st.sampled_from((torch.uint8, torch.int16, torch.float32)))
    memory = MEMORY.view(dtype)
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    stride = [draw(st.integers(0, 4)) for _ in shape]
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if last >= memory.numel():
        return memory[:1]
    return memory.as_strided(shape, stride, draw(st.integers(0, memory.numel() - 1 - last)))


def bytes_of(view):
    addresses = {0}
    for n, step in zip(view.shape, view.stride(), strict=True):
        addresses = {a + i * step for a in addresses for i in range(n)}
    begin = view.data_ptr()
    return {begin + a * view.itemsize + i for a in addresses for i in range(view.itemsize)}


@given(one=views(), other=views())
def test_two_views_share_bytes_if_their_sets_do(one, other):
    expected = bool(bytes_of(one) & bytes_of(other))
    assert share_bytes(span_of(one), span_of(other)) == expected
    assert share_bytes(span_of(other), span_of(one)) == expected


TOUCHING = {
    "add": (lambda x, y: (x, y), {}, [("x", False), ("y", False)]),
    "add_": (lambda x, y: (x, y), {}, [("x", True), ("y", False)]),
    "cat": (lambda x, y: ([x, y],), {}, [("x", False), ("y", False)]),
    "_foreach_add_": (lambda x, y: ([x], [y]), {}, [("x", True), ("y", False)]),
    "zeros_like": (lambda x, y: (x,), {}, []),
    "new_empty": (lambda x, y: (x, (2,)), {}, []),
}
OVERLOADS = {"add": "Tensor", "add_": "Tensor", "_foreach_add_": "List"}


@given(name=st.sampled_from(sorted(TOUCHING)))
def test_reads_and_writes_follow_from_the_schema(name):
    x, y = torch.ones(2), torch.ones(2)
    args, kwargs, expected = TOUCHING[name]
    op = getattr(getattr(torch.ops.aten, name), OVERLOADS.get(name, "default"))
    names = {id(x): "x", id(y): "y"}
    found = [
        (names[id(t)], writes) for t, writes in tensors_of(tensor_arguments(op), args(x, y), kwargs)
    ]
    assert found == expected


def test_an_output_by_name_is_written():
    x, out = torch.ones(2), torch.empty(2)
    found = tensors_of(tensor_arguments(torch.ops.aten.neg.out), (x,), {"out": out})
    assert [(t is out, writes) for t, writes in found] == [(False, False), (True, True)]


def test_parts_of_sparse_tensors_are_touched():
    sparse = torch.eye(3).to_sparse()
    found = tensors_of(tensor_arguments(torch.ops.aten.neg.default), (sparse,), {})
    assert [t.data_ptr() for t, _ in found] == [
        sparse._indices().data_ptr(),
        sparse._values().data_ptr(),
    ]


@pytest.mark.without("--races", reason="races on purpose")
@given(training=st.booleans(), batch=st.integers(2, 9))
def test_running_statistics_are_written_where_a_batch_norm_trains(simulated, training, batch):
    norm = torch.nn.BatchNorm1d(3, device=simulated[0]).train(training)
    x = torch.ones(batch, 3, device=simulated[0])
    torch.simgpu.synchronize(simulated[0])
    with simgpu.races() as races, torch.no_grad():
        for _ in range(2):
            with torch.simgpu.Stream(simulated[0]):
                norm(x)
    assert any(race.second.op == "native_batch_norm" for race in races) == training
