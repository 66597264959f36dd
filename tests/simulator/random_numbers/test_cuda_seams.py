"""Where a draw is cut in parts, and where numbers wrap around: nothing changes there.

Chunks are those that fit in the processor's cache, blocks those that fit in a grid; both are far
larger than what a test draws, so these properties make them small.
"""

import struct
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import world
from simgpu._random import layout, philox, samplers
from simgpu._random.fill import Source
from simgpu._random.generator_state import Stream
from tests.support import cuda_draws

seeds = st.integers(0, 2**64 - 1)
offsets = st.integers(0, 2**62 - 1).map(lambda place: 4 * place)

DRAWS = {
    "rand": lambda n, device: torch.rand(n, device=device),
    "randn of doubles": lambda n, device: torch.randn(n, dtype=torch.float64, device=device),
    "randint": lambda n, device: torch.randint(0, 2**40, (n,), device=device),
    "randperm": lambda n, device: torch.randperm(n, device=device),
    "bernoulli of a tensor": lambda n, device: torch.bernoulli(torch.full((n,), 0.5).to(device)),
    "dropout of floats": lambda n, device: torch.native_dropout(
        torch.ones(4 * n, device=device), 0.5, True
    )[1],
    "dropout of halves": lambda n, device: torch.native_dropout(
        torch.ones(8 * n, dtype=torch.half, device=device), 0.5, True
    )[1],
    "multinomial": lambda n, device: torch.multinomial(
        torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1]]).to(device), n, replacement=True
    ),
}


@pytest.mark.parametrize("name", sorted(DRAWS))
@given(numel=st.integers(2, 700), chunk=st.integers(1, 90), seed=seeds)
def test_chunks_change_nothing(simulated, name, numel, chunk, seed):
    device = simulated[0]
    world.device(0).resident_threads = 256

    def drawn():
        torch.simgpu.default_generators[0].manual_seed(seed)
        return DRAWS[name](numel, device).tolist()

    whole = drawn()
    with patch.object(philox, "CHUNK", chunk):
        assert drawn() == whole


@given(rows=st.integers(1, 7), most=st.integers(1, 4), samples=st.integers(2, 200), seed=seeds)
def test_rows_beyond_the_grid_draw_at_the_next_place(rows, most, samples, seed):
    weights = torch.full((rows, 8), 0.125, dtype=torch.float64)
    stream = Stream(seed, 12)
    with patch.object(samplers, "_MOST_ROWS", most):
        drawn = samplers.with_replacement(weights, samples, Source(stream, 256)).tolist()
    width, blocks = -(-samples // 128) * 128, min(rows, most)
    for row in range(rows):
        call, block = divmod(row, blocks)
        for sample in (0, samples - 1):
            word = cuda_draws.Thread(seed, block * width + sample, 12 + 4 * call).four()[0]
            # Eighths are exact, and one that is reached belongs to the category below.
            assert drawn[row][sample] == -(-cuda_draws.unit_float(word) * 8 // 1) - 1
    assert stream.get_offset() == 12 + 4 * -(-rows // blocks)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=seeds, offset=offsets)
def test_every_group_of_equal_keys_is_shuffled(sizes, seed, offset):
    keys = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    order = np.arange(len(keys))
    samplers._shuffle_equals(order, keys, seed, offset >> 2)
    expected, head = list(range(len(keys))), 0
    for size in sizes:
        generator, words = cuda_draws.Thread(seed, head, offset), []
        for last in range(size - 1, 0, -1):
            words = words or list(generator.four())
            one, two = head + last, head + words.pop(0) % (last + 1)
            expected[one], expected[two] = expected[two], expected[one]
        head += size
    assert order.tolist() == expected


edges = st.sampled_from([0, 2**32, 2**63 - 4, 2**63, 2**63 + 4, 2**64 - 8, 2**64 - 4])


@given(seed=seeds, offset=edges | offsets, increment=st.integers(1, 40))
def test_a_state_holds_every_offset_and_the_last_is_followed_by_the_first(seed, offset, increment):
    stream = Stream(seed, offset)
    state = stream.get_state()
    assert bytes(state.tolist()) == struct.pack("<QQ", seed, offset)
    other = Stream()
    other.set_state(state)
    assert (other.initial_seed(), other.get_offset()) == (seed, offset)
    assert other.take(increment) == (seed, offset // 4)
    assert other.get_offset() == (offset + (increment + 3) // 4 * 4) % 2**64
    other.set_state(state[:8])  # only a seed
    assert (other.initial_seed(), other.get_offset()) == (seed, 0)


REFUSED = {
    "uniform_": [(1.0, 0.0), (0.0, float("inf"))],
    "normal_": [(0.0, -1.0)],
    "log_normal_": [(0.0, 0.0), (0.0, -1.0)],
    "cauchy_": [(0.0, 0.0), (0.0, -1.0)],
    "exponential_": [(0.0,), (-1.0,)],
    "geometric_": [(0.0,), (1.0,), (1.5,)],
    "bernoulli_": [(1.5,), (-0.5,)],
    "random_": [(5, 5), (7, 3), (0,)],
}
CALLS = [(name, args) for name, listed in REFUSED.items() for args in listed]


@given(call=st.sampled_from(CALLS), dtype=st.sampled_from([torch.float32, torch.float16]),
       numel=st.integers(1, 3000))  # fmt: skip
def test_draw_refused_by_the_cpu_consumes_no_numbers(simulated, call, dtype, numel):
    name, args = call
    torch.simgpu.default_generators[0].manual_seed(1)
    world.device(0).resident_threads = layout.resident_threads(1, 256)
    with pytest.raises(RuntimeError) as there:
        getattr(torch.empty(numel, dtype=dtype), name)(*args)
    with pytest.raises(RuntimeError) as here:
        getattr(torch.empty(numel, dtype=dtype, device=simulated[0]), name)(*args)
    assert str(here.value) == str(there.value)
    assert torch.simgpu.default_generators[0].get_offset() == 0


def _tossed(dtype):
    return lambda device: (
        torch.zeros(3, device=device).to(dtype).bernoulli_(torch.full((3,), 0.5, device=device))
    )


# What no kernel takes: PyTorch's words are the same for all devices, but for a kernel's name.
NEVER = {
    "weights without dimensions": lambda d: torch.multinomial(torch.tensor(1.0, device=d), 1, True),
    "samples of them": lambda d: torch.multinomial(torch.tensor(1.0, device=d), 3, True),
    "too many categories": lambda d: torch.multinomial(
        torch.ones(1, device=d).expand(2**24 + 1), 1
    ),
    "sizes that do not fit": lambda d: torch.normal(
        torch.zeros(3, device=d), torch.ones(4, device=d)
    ),
    "tosses as complex numbers": _tossed(torch.complex64),
    "tosses as wide unsigned ones": _tossed(torch.uint32),
    "tosses in 8 bits of a float": _tossed(torch.float8_e5m2),
    "from past all floats": lambda d: torch.zeros(3, device=d).random_(2**62, None),
}


@pytest.mark.parametrize("name", NEVER)
def test_refused_draw_consumes_no_numbers(simulated, name):
    torch.simgpu.default_generators[0].manual_seed(1)
    with pytest.raises((RuntimeError, NotImplementedError)) as there:
        NEVER[name]("cpu")
    with pytest.raises(type(there.value)) as here:
        NEVER[name](simulated[0])
    assert str(here.value) == str(there.value).replace("_cpu_", "_cuda_")  # whose kernel it is
    assert torch.simgpu.default_generators[0].get_offset() == 0


@given(
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    low=st.integers(2**62, 2**63 - 1) | st.integers(2**63 - 9, 2**63 - 1),
    rng=st.sampled_from(["cuda", "host"]),
)
def test_a_range_past_all_floats_is_refused_at_once(dtype, low, rng):
    """PyTorch's own check of the last numbers takes them for negative ones, or never ends."""
    refused = pytest.raises(RuntimeError, match=f"but got from={low} > to_inc=[0-9]+$")
    with simgpu.devices(1, rng=rng) as devices, refused:
        torch.zeros(3, dtype=dtype, device=devices[0]).random_(low, None)
