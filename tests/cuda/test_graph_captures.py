"""torch.cuda.CUDAGraph: what a capture refuses, how it ends, and events from outside of it."""

import contextlib
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import hooks
from simgpu.errors import CaptureError, UnsupportedError

SIZE = 4


def capture(graph, work):
    with torch.cuda.graph(graph):
        work()


turns = st.lists(st.sampled_from(["draw", "keep", "go back", "skip"]), min_size=1, max_size=8)


@given(turns=turns, seed=st.integers(-3, 3), before=st.integers(0, 3))
def test_states_that_are_set_in_a_capture_are_set_in_each_replay(cuda, turns, seed, before):
    """As by torch.utils.checkpoint, which draws masks again; an offset is one within the graph."""

    def program(generator):
        states, found = [generator.get_state()], []
        for turn in (*turns, "draw"):
            if turn == "draw":
                found.append(torch.rand(5, device="cuda", generator=generator))
            elif turn == "keep":
                states.append(generator.get_state())
            elif turn == "skip":
                state = generator.get_state()
                state[8] += 4  # the lowest byte of the offset
                generator.set_state(state)
            else:
                generator.set_state(states[-1])
        return states, found

    plain = torch.Generator(device="cuda").manual_seed(seed).set_offset(4 * before)
    captured = torch.cuda.default_generators[0].manual_seed(seed).set_offset(4 * before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.manual_seed(seed)  # which it has: nothing happens
        within, made = program(captured)
    assert captured.get_offset() == 4 * before
    for replayed in range(2):
        states, expected = program(plain)
        graph.replay()
        assert [each.tolist() for each in made] == [each.tolist() for each in expected]
        assert captured.get_offset() == plain.get_offset()
        if (replayed, before) == (0, 0):
            assert [state.tolist() for state in within] == [state.tolist() for state in states]


GENERATORS = {
    "set_current_seed can be called .* only if new seed is": lambda own: torch.cuda.manual_seed(
        torch.cuda.initial_seed() ^ 1
    ),
    "set_current_seed": lambda own: torch.cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8)),
    "seed during CUDA graph capture": lambda own: torch.cuda.seed(),
    "get_offset": lambda own: own.get_offset(),
    "set_offset": lambda own: own.set_offset(4),
    "Cannot construct a new": lambda own: torch.Generator("cuda"),
    "clone_impl": lambda own: own.clone_state(),
}


@pytest.mark.parametrize("words", GENERATORS)
def test_generators_refuse_calls_in_a_capture(cuda, words):
    torch.manual_seed(1)
    own = torch.Generator("cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.rand(1, device="cuda")
        with pytest.raises(CaptureError, match=words):
            GENERATORS[words](own)
    assert torch.cuda.default_generators[0].initial_seed() == 1
    GENERATORS[words](own)  # as ever


ILLEGAL = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": torch.nonzero,
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "put by mask": lambda x: x.__setitem__(x > 0, torch.zeros(1, device=x.device)),
    "device": lambda x: torch.cuda.synchronize(),
    "one of two devices": lambda x: (
        torch.cuda.Stream("cuda:1").wait_stream(torch.cuda.current_stream()),
        torch.cuda.synchronize("cuda:0"),
    ),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "event": lambda x: torch.cuda.current_stream().record_event().synchronize(),
    "is a stream done": lambda x: torch.cuda.current_stream().query(),
    "is an event passed": lambda x: torch.cuda.current_stream().record_event().query(),
    "to another device": lambda x: x.to("cuda:1"),
    "from another device": lambda x: x.copy_(torch.ones(SIZE, device="cuda:1")),
    "pinned, but waiting": lambda x: x.copy_(torch.ones(SIZE).pin_memory()),
    "other stream": lambda x: torch.cuda.current_stream().wait_stream(torch.cuda.Stream()),
    "default stream": lambda x: torch.cuda.default_stream().wait_stream(
        torch.cuda.current_stream()
    ),
}


@pytest.mark.parametrize("name", sorted(ILLEGAL))
def test_synchronizing_call_ends_a_capture_with_an_error(cuda, name):
    x = torch.ones(SIZE, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="failed due to a previous error") as caught:
        capture(graph, lambda: (x.add_(1), ILLEGAL[name](x)))
    assert isinstance(caught.value, torch.AcceleratorError)
    assert str(caught.value.__context__).startswith("CUDA error: ")
    assert x.tolist() == [1.0] * SIZE
    with pytest.raises(CaptureError, match="replay without a preceding"):
        graph.replay()


@given(
    asks=st.sampled_from(["query", "synchronize"]),
    where=st.sampled_from(["captured", "beside", "captured, and again after it"]),
)
def test_event_of_a_capture_cannot_be_waited_for(cuda, asks, where):
    """Nor asks for it, until it is recorded anew; other streams' marks are as ever."""
    x, event = torch.ones(SIZE, device="cuda"), torch.cuda.Event()
    other = torch.cuda.Stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
        event.record(other if where == "beside" else None)
        if where == "beside":
            assert getattr(event, asks)() in (True, None)
    if where == "captured, and again after it":
        event.record()
    if where != "captured":
        assert getattr(event, asks)() in (True, None)
    else:
        with pytest.raises(CaptureError, match="event last recorded in a capturing stream"):
            getattr(event, asks)()


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x.copy_(torch.ones(SIZE)),
        lambda x: torch.tensor([1.0], device="cuda"),
        lambda x: torch.ones(SIZE).to("cuda", non_blocking=True),
    ],
)
def test_copies_need_pinned_memory(cuda, copy):
    x = torch.ones(SIZE, device="cuda")
    with pytest.raises(RuntimeError, match="during CUDA graph capture unless the CPU tensor is"):
        capture(torch.cuda.CUDAGraph(), lambda: copy(x))


def test_wrong_calls_raise(cuda):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="captured on a non-default stream"):
        graph.capture_begin()
    for call in (graph.replay, graph.pool, graph.capture_end):
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            call()
    with torch.cuda.stream(torch.cuda.Stream()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="Unknown capture error mode"):
            graph.capture_begin(capture_error_mode="sometimes")
        with pytest.raises(UnsupportedError, match="check_input_liveness"):
            graph.capture_begin(check_input_liveness=True)
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
        with pytest.raises(RuntimeError, match="another graph captures it"):
            torch.cuda.CUDAGraph().capture_begin()
        graph.capture_end()
    assert graph.pool() != torch.cuda.graph_pool_handle() != torch.cuda.graph_pool_handle()
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin()
    with pytest.raises(UnsupportedError, match="debug_dump"):
        graph.debug_dump("file")


def test_a_capture_ends_with_its_graph_or_its_devices():
    with simgpu.as_cuda(1):
        x = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            x.add_(1)
            del graph
            assert not torch.cuda.is_current_stream_capturing()
            assert x.item() == 0
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
    with simgpu.as_cuda(1):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            assert torch.ones(1, device="cuda").item() == 1


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_output_does_not_grow_in_a_capture(cuda):
    x, out = torch.ones(3, SIZE, device="cuda")[:2]
    with pytest.raises(UnsupportedError, match=r"has to grow to shape \(8,\)"):
        capture(torch.cuda.CUDAGraph(), lambda: torch.cat([x, x], out=out.clone()))
    empty = torch.empty(0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cat([x, x], out=empty)
    x.fill_(2)
    graph.replay()
    assert empty.tolist() == [2.0] * 2 * SIZE


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty", "ignore:Sparse invariant checks")
def test_sparse_tensors_are_not_captured(cuda):
    dense = torch.eye(3, device="cuda")
    x = dense.to_sparse()
    with pytest.raises(UnsupportedError, match="sparse or nested"):
        capture(torch.cuda.CUDAGraph(), lambda: torch.sparse.mm(x, dense))


class Log(hooks.Instrument):
    """What kernels ran, and which events were recorded and waited for, in order."""

    def __init__(self, events):
        self.events, self.seen = events, []

    def after_launch(self, launch, record):
        if record.kind == "kernel":
            self.seen.append(record.op)

    def event_recorded(self, event, stream):
        if event in self.events:
            self.seen.append(("records", self.events.index(event)))

    def stream_waits(self, stream, awaited):
        if awaited in self.events:
            self.seen.append(("waits", self.events.index(awaited)))


def logged(events, work):
    log = Log(events)
    hooks.add(log)
    try:
        work()
    finally:
        hooks.remove(log)
    return log.seen


steps = st.tuples(st.sampled_from(["mul_", "add_", "records", "waits"]), st.integers(0, 1))


@given(steps=st.lists(steps, min_size=1, max_size=8), replays=st.integers(1, 3))
def test_replay_records_and_waits_as_the_program(cuda, steps, replays):
    x = torch.ones(3, device="cuda")
    captured = [torch.cuda.Event(external=True) for _ in range(2)]
    events = captured[:]

    def program():
        x.mul_(1)  # a graph of no kernels is warned of
        for step, number in steps:
            if step == "records":
                events[number].record()
            elif step == "waits":
                events[number].wait()
            else:
                getattr(x, step)(number)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program()
    assert all(event.query() for event in events)  # not recorded yet
    events[:] = [torch.cuda.Event(external=True) for _ in range(2)]
    expected = logged(events, program)
    for number in range(2):  # a wait for an event that was never recorded does nothing
        assert [each[0] for each in expected if each[1:] == (number,)][:1] != ["waits"]
    events[:] = captured
    for _ in range(replays):
        assert logged(events, graph.replay) == expected


@pytest.mark.parametrize("external", [False, True])
def test_only_external_events_measure_within_a_graph(cuda, external):
    begin, end = (torch.cuda.Event(enable_timing=True, external=external) for _ in range(2))
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        begin.record()
        x.mul_(2)
        end.record()
    if not external:
        outside = torch.cuda.Event(enable_timing=True)
        outside.record()
        for pair in ((begin, end), (begin, outside), (outside, end)):
            with pytest.raises(CaptureError, match="event last recorded in a capturing stream"):
                pair[0].elapsed_time(pair[1])
        return
    with pytest.raises(CaptureError, match="invalid resource handle"):
        begin.elapsed_time(end)
    with simgpu.clock("A100"):
        graph.replay()
        end.synchronize()
        assert begin.elapsed_time(end) > 0


@given(
    method=st.booleans(),
    external=st.booleans(),
    recorded=st.booleans(),
    current=st.booleans(),
)
def test_a_wait_in_a_capture_depends_on_the_current_stream(
    cuda, method, external, recorded, current
):
    """As PyTorch asks: `on` has joined the capture, and is current or not; so `out` has not."""
    on, out, event = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event(external=external)
    x, graph, seen = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph(), []
    if recorded:
        event.record(out)

    def wait(stream):
        stream.wait_event(event) if method else event.wait(stream)

    # No stream but a captured one may wait by a node, and by no node for what is not captured.
    no_node, no_wait = external and not current, current and not external

    def program():
        x.mul_(1)
        on.wait_stream(torch.cuda.current_stream())
        with refused(recorded and no_node, "invalid argument"):
            seen[:] = logged([event], lambda: wait(on if current else out))
        torch.cuda.current_stream().wait_stream(on)

    with refused(recorded and no_wait), torch.cuda.graph(graph):
        program()
    if not (recorded and no_wait):
        assert seen == [("waits", 0)] * (recorded and not external)
        assert logged([event], graph.replay)[1:] == [("waits", 0)] * (recorded and current)


def refused(expected, match="error"):
    return pytest.raises(CaptureError, match=match) if expected else contextlib.nullcontext()


@given(external=st.booleans())
def test_event_recorded_on_a_stream_that_is_not_current_is_no_node(cuda, external):
    """Of two devices: the second one's stream has joined, and is not current there."""
    x, joined = torch.ones(3, device="cuda:0"), torch.cuda.Stream("cuda:1")
    event, graph = torch.cuda.Event(external=external), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(1)
        joined.wait_stream(torch.cuda.current_stream())
        event.record(joined)
        torch.cuda.current_stream().wait_stream(joined)
    with pytest.raises(CaptureError, match="event last recorded in a capturing stream"):
        event.query()
    assert logged([event], graph.replay) == ["mul_.Scalar"]


@given(index=st.integers(1, 3))
def test_a_replay_records_on_the_device_that_the_capture_recorded_on(cuda, index):
    x, joined = torch.ones(3, device="cuda:0"), torch.cuda.Stream(f"cuda:{index}")
    event, graph = torch.cuda.Event(external=True), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(1)
        joined.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(joined):
            event.record()
        torch.cuda.current_stream().wait_stream(joined)
    assert logged([event], graph.replay) == ["mul_.Scalar", ("records", 0)]
    assert event.device.index == index
