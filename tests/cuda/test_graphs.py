"""torch.cuda.CUDAGraph: what is captured happens at each replay, and not before."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from simgpu.errors import CaptureError

SIZE = 4

# Steps of a program on a few vectors: each gives a new one, or writes to the first of the two.
NEW = {
    "add": torch.add,
    "mm": lambda x, y: torch.outer(x, y) @ y,
    "cat": lambda x, y: torch.cat([x[1:], y[:1]]),
    "stack": lambda x, y: torch.stack([x, y]).amax(0),
    "rand": lambda x, y: torch.rand_like(x) + y,
    "dropout": lambda x, y: nn.functional.dropout(x, 0.5),
    "index": lambda x, y: x[torch.arange(SIZE - 1, -1, -1, device=x.device)],
    "empty": lambda x, y: torch.empty_like(x).copy_(y),
    "complex": lambda x, y: torch.complex(x, y).conj().angle(),
}
WRITTEN = {
    "add_": lambda x, y: x.add_(y, alpha=0.5),
    "part": lambda x, y: x[1:].mul_(y[:-1].clone()),
    "copy_": lambda x, y: x.copy_(y),
    "normal_": lambda x, y: x.normal_(),
    "out": lambda x, y: torch.sub(x, y, out=x),
    "foreach": lambda x, y: torch._foreach_mul_([x], 0.5),
    "number": lambda x, y: x.clamp_(-2.0, 2.0).add_(1),
}
steps = st.lists(
    st.tuples(st.sampled_from([*NEW, *WRITTEN]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=8,
)


def program(names, given_tensors):
    """What the steps make of the tensors, and the tensors that they make."""
    known = list(given_tensors)
    for name, first, second in names:
        x, y = known[first % len(known)], known[second % len(known)]
        if name in NEW:
            known.append(NEW[name](x, y))
        else:
            WRITTEN[name](x, y)
    return known


def inputs(device):
    return [torch.linspace(-1, 1, SIZE, device=device), torch.ones(SIZE, device=device)]


def values(tensors):
    return [tensor.clone().cpu() for tensor in tensors]


def same(found, expected):
    return all(
        torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(found, expected, strict=True)
    )


@given(names=steps, replays=st.integers(0, 3), seed=st.integers(0, 9), device=st.integers(0, 3))
def test_replays_repeat_the_program(cuda, names, replays, seed, device):
    with torch.cuda.device(device):
        here = inputs("cuda")
        torch.cuda.manual_seed(seed)
        for _ in range(replays):
            expected = values(program(names, here))
        after = torch.cuda.get_rng_state()
        there = inputs("cuda")
        torch.cuda.manual_seed(seed)
        before = values(there), torch.cuda.get_rng_state()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            made = program(names, there)
        assert same(values(there), before[0])
        assert torch.equal(torch.cuda.get_rng_state(), before[1])
        places = [tensor.data_ptr() for tensor in made]
        for _ in range(replays):
            graph.replay()
        assert [tensor.data_ptr() for tensor in made] == places
        if replays:
            assert same(values(made), expected)
            assert torch.equal(torch.cuda.get_rng_state(), after)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, capturable=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, capturable=True, foreach=False),
    "fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True, capturable=True),
}


@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
@given(name=st.sampled_from(sorted(OPTIMIZERS)), seed=st.integers(0, 9), replays=st.integers(1, 2))
def test_training_by_replays_gives_the_same_weights(cuda, name, seed, replays):
    """The whole step is captured: dropout, running statistics, gradients and the optimizer."""

    def trained(captured):
        torch.manual_seed(seed)
        layers = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 1)
        net = nn.Sequential(*layers).cuda()
        optimizer = OPTIMIZERS[name](net.parameters())
        batch = torch.randn(4, 3, device="cuda")

        def step():
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()

        step()  # optimizers make their state at the first step, with numbers of the host
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph):
                step()
        for index in range(replays):
            batch.fill_(index + 1).cumsum_(0)
            graph.replay() if captured else step()
        return {key: value.cpu() for key, value in net.state_dict().items()}

    plain, replayed = trained(captured=False), trained(captured=True)
    assert all(torch.equal(plain[key], replayed[key]) for key in plain)


# PyTorch warms up on one stream and captures on another, and warns of that, as on CUDA.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@given(rows=st.integers(1, 4), calls=st.integers(1, 3))
def test_graphed_callables_have_the_gradients_of_the_module(cuda, rows, calls):
    batches = [torch.arange(rows * 3.0).view(rows, 3) + call for call in range(calls)]
    seen = []
    for graphed in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(3, 2).cuda()
        call = module
        if graphed:
            sample = torch.zeros(rows, 3, device="cuda", requires_grad=True)
            call = torch.cuda.make_graphed_callables(module, (sample,))
        for batch in batches:
            x = batch.cuda().requires_grad_()
            module.zero_grad()  # else they would accumulate in the graph's own memory
            call(x).square().sum().backward()
            seen.append([value.cpu() for value in (x.grad, module.weight.grad, module.bias.grad)])
    for plain, graphed in zip(seen[:calls], seen[calls:], strict=True):
        assert all(map(torch.equal, plain, graphed))


def test_a_copy_of_pinned_memory_is_done_again_at_each_replay(cuda):
    source, target = torch.zeros(SIZE).pin_memory(), torch.zeros(SIZE).pin_memory()
    x = torch.ones(SIZE, device="cuda")
    number = torch.tensor(2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(source, non_blocking=True)
        target.copy_(x * number, non_blocking=True)
    assert (target[0], x[0]) == (0, 1)
    number.fill_(7)  # a kernel takes a number of the host as it was
    for count in range(3):
        source.fill_(count)
        graph.replay()
        torch.cuda.synchronize()
        assert target.tolist() == [2.0 * count] * SIZE


@given(data=st.data())
def test_streams_join_a_capture_and_have_to_rejoin(cuda, data):
    """Forks and joins in any order: a graph if and only if all work comes before the end."""
    side = [torch.cuda.Stream() for _ in range(3)]
    x = torch.zeros(SIZE, device="cuda")
    seen = {0: {0}}  # for each captured stream, the others whose present work precedes its next
    graph = torch.cuda.CUDAGraph()
    main = torch.cuda.Stream()
    main.wait_stream(torch.cuda.current_stream())
    everything = [main, *side]
    moves = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
    expected = 0
    with torch.cuda.stream(main):
        graph.capture_begin()
        for waiting, awaited in moves:
            if awaited not in seen or waiting == awaited:
                continue
            if data.draw(st.booleans()):
                everything[waiting].wait_stream(everything[awaited])
            else:
                everything[waiting].wait_event(everything[awaited].record_event())
            seen[waiting] = seen.get(waiting, {waiting}) | seen[awaited]
            with torch.cuda.stream(everything[waiting]):
                x.add_(1)
            expected += 1
            for other, precedes in seen.items():
                if other != waiting:
                    precedes.discard(waiting)
        if set(seen) <= seen[0] and expected:
            graph.capture_end()
            graph.replay()
            assert x.tolist() == [float(expected)] * SIZE
        elif set(seen) <= seen[0]:
            with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
                graph.capture_end()
        else:
            with pytest.raises(CaptureError, match="unjoined work"):
                graph.capture_end()


@given(reads=st.booleans(), other=st.sampled_from(["default", "alone", "joined"]))
def test_a_copy_between_devices_takes_the_streams_of_both(cuda, reads, other):
    """Each waits for the other, before and after: both are captured then, or CUDA refuses.

    `reads`: the device of the capture is the one that is read from.
    """
    here = torch.cuda.Stream(cuda[1])
    there = torch.cuda.default_stream(cuda[2]) if other == "default" else torch.cuda.Stream(cuda[2])
    source, target = (1, 2) if reads else (2, 1)
    x = torch.ones(SIZE, device=cuda[source])
    y, done = torch.zeros(SIZE, device=cuda[target]), torch.zeros(SIZE, device=cuda[target])
    graph = torch.cuda.CUDAGraph()
    refused = other == "default" or (other == "alone" and reads)
    with torch.cuda.stream(there), torch.cuda.stream(here):
        graph.capture_begin()
        if other == "joined":
            there.wait_stream(here)
        if refused:
            words = "uncaptured work in another stream" if reads else "the legacy stream depend"
            with pytest.raises(CaptureError, match=words):
                y.copy_(x)
            with pytest.raises(CaptureError, match="previous error"):
                graph.capture_end()
        else:
            y.copy_(x)
            done.copy_(y)
            if reads:  # else the copy has let the device of the capture wait
                here.wait_stream(there)
            graph.capture_end()
    torch.cuda.synchronize(cuda[target])
    assert y.tolist() == [0.0] * SIZE
    if not refused:
        x.fill_(7)
        graph.replay()
        assert y.tolist() == done.tolist() == [7.0] * SIZE


def test_graph_keeps_memory_of_its_tensors(cuda):
    torch.cuda.synchronize()
    x = torch.ones(SIZE, device="cuda")
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (x + 1) * (x + 2)
    assert torch.cuda.memory_allocated() == before + 512
    assert result.isnan().all()  # nothing has been computed
    graph.replay()
    assert result.tolist() == [6.0] * SIZE
    graph.reset()
    del graph
    gc.collect()
    assert result.tolist() == [6.0] * SIZE
    del result
    assert torch.cuda.memory_allocated() == before


@given(seed=st.integers(0, 9), turns=st.lists(st.integers(0, 1), min_size=1, max_size=4))
def test_graph_draws_from_registered_generators(cuda, seed, turns):
    """A generator that goes from stream to stream in a capture does so in each replay."""

    def streams(generator):
        torch.rand(1, device="cuda")
        generator.manual_seed(seed)
        return generator, (generator.graphsafe_get_state(), generator.clone_state())

    def drawn(generator, states):
        found = []
        for turn in turns:
            generator.graphsafe_set_state(states[turn])
            found.append(torch.rand(5, device="cuda", generator=generator))
        generator.graphsafe_set_state(states[0])
        return found

    plain, captured = map(
        streams, (torch.Generator(device="cuda"), torch.cuda.default_generators[0])
    )
    graph = torch.cuda.CUDAGraph()
    for state in captured[1]:
        graph.register_generator_state(state)
    with torch.cuda.graph(graph):
        made = drawn(*captured)
    for _ in range(2):
        expected = drawn(*plain)
        graph.replay()
        assert same(values(made), values(expected))
        offsets = [[state.get_offset() for state in states] for _, states in (plain, captured)]
        assert offsets[0] == offsets[1]


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="this release has none")
@given(numbers=st.lists(st.integers(-9, 9), min_size=1, max_size=4))
def test_accelerator_graph_replays_its_block(cuda, numbers):
    x = torch.zeros(2, device=cuda[0])
    graph = torch.accelerator.Graph()
    with torch.cuda.stream(torch.cuda.Stream()), graph:
        y = x * 2 + 1
    for number in numbers:
        x.fill_(number)
        graph.replay()
        assert y.tolist() == [2 * number + 1] * 2
    again = torch.accelerator.Graph(pool=graph.pool(), capture_error_mode="relaxed")
    assert again.graph_pool == graph.pool()
    with pytest.raises(RuntimeError, match="non-default stream"):
        again.capture_begin()
