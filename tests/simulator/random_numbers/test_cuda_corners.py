"""Rare numbers and odd arguments: a draw of exactly 1, offsets past 32 bits, rounded limits.

What the properties of test_cuda_random and test_cuda_samplers meet once in a million examples. And
where a draw is cut in parts: chunks that fit in the cache and blocks that fit in a grid are far
larger than what a test draws, so these properties make them small.
"""

import math
import re
import struct
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import world
from simgpu._random import distributions, fill, layout, philox, samplers
from simgpu._random.distributions import order_of_elements
from simgpu._random.fill import Source
from simgpu._random.generator_state import Stream
from simgpu._random.samplers import _buckets
from tests.support import cuda_draws

GPU = 1, 256  # holds 256 threads
# The first word of this thread is so large that it makes the float 1: one in 2**25 does.
SEED, THREAD = 5929, 1307
EPS = torch.finfo(torch.float32).eps


def start(device, gpu, seed, offset):
    world.device(device.index).resident_threads = layout.resident_threads(*gpu)
    return torch.simgpu.default_generators[0].manual_seed(seed).set_offset(offset)


def of_one(simulated, draw, numel=2048):
    """What becomes of the 1, by the model of the generic device: all threads at once."""
    start(simulated[0], (132, 2048), SEED, 0)
    return draw(torch.empty(numel, device=simulated[0])).tolist()[THREAD]


def test_a_draw_of_one(simulated):
    word = cuda_draws.Thread(SEED, THREAD, 0).four()[0]
    assert cuda_draws.unit_float(word) == 1
    for numel in (2048, 3000):  # computed ahead, and not
        assert of_one(simulated, lambda x: x.uniform_(), numel) == 0
        assert of_one(simulated, lambda x: x.uniform_(-3, 5), numel) == -3
    # The logarithm of 1 is taken for half of the smallest step below 0.
    assert of_one(simulated, lambda x: x.exponential_(2)) == EPS / 4
    # The tangent stays away from its pole.
    assert of_one(simulated, lambda x: x.cauchy_()) == pytest.approx(1 / (math.pi * EPS), rel=0.3)
    assert of_one(simulated, lambda x: x.bernoulli_(1.0)) == 0
    assert of_one(simulated, lambda x: torch.bernoulli(torch.ones_like(x))) == 1
    start(simulated[0], (132, 2048), SEED, 0)
    mask = torch.native_dropout(torch.ones(8192, device=simulated[0]), 0.0, True)[1]
    assert (~mask).nonzero().tolist() == [[4 * THREAD]]  # four words of each thread


@given(bits=st.integers(1, 53), high=st.booleans(), p=st.sampled_from([1e-12, 1e-3, 0.3, 1 - 1e-9]))
def test_doubles_beside_their_ends_are_not_taken_for_floats(bits, high, p):
    """Which are clipped there, and have no exact logarithm of 1 - p."""
    unit = 1 - 2.0**-bits if high else 2.0**-bits

    def made(kind):
        values = np.array([unit])
        kind.transform(values)
        return float(values[0])

    assert made(distributions.Exponential(True, 2)) == pytest.approx(-math.log(unit) / 2, rel=1e-12)
    tangent = math.tan(math.pi * (unit - 0.5))
    assert made(distributions.Cauchy(True, 0, 1)) == pytest.approx(tangent, rel=1e-12, abs=1e-12)
    tosses = math.log(unit) / math.log1p(-p)
    assert made(distributions.Geometric(True, p)) == pytest.approx(
        tosses + 0.5, rel=1e-12, abs=0.5001
    )


strides = st.sampled_from([1, 10, 100, 1000])
dimensions = st.lists(st.tuples(st.integers(1, 3), strides, strides), min_size=3, max_size=5)


@given(dimensions=dimensions)
def test_dimensions_of_one_element_do_not_order_the_others(dimensions):
    """Each has a size, and the strides of a tensor and of its chances."""

    def order(dims):
        columns = list(zip(*(dimensions[dim] for dim in dims), strict=True)) or [(), (), ()]
        return [dims[place] for place in order_of_elements(*columns)]

    several = [dim for dim, (size, _, _) in enumerate(dimensions) if size > 1]
    found = order(list(range(len(dimensions))))
    assert sorted(found) == list(range(len(dimensions)))
    assert [dim for dim in found if dim in several] == order(several)


@given(before=st.integers(1, 12), step=st.integers(1, 3), numel=st.integers(1, 40))
def test_offsets_go_on_past_32_bits(simulated, before, step, numel):
    """Also while words are computed ahead."""
    generator = start(simulated[0], GPU, 7, 4 * (2**32 - before))
    for number in range(20):
        offset = generator.get_offset()
        drawn = torch.rand(numel, device=simulated[0]).tolist()
        units = cuda_draws.grid_stride(numel, 4, GPU, 7, offset, cuda_draws.four_floats)
        assert drawn == units, number
        generator.set_offset(offset + 4 * step)


@given(numel=st.integers(1, 600), limit=st.integers(200, 2500), seed=st.integers(0, 99))
def test_a_tensor_without_gaps_is_halved_too(numel, limit, seed):
    """As one of 2 GiB would be, if the limit were lower."""
    gpu, stream, tensor = (1, 256), Stream(seed, 8), torch.empty(numel)
    with patch.object(fill, "INT32_MAX", limit), patch.object(layout, "INT32_MAX", limit):
        source = fill.Source(stream, layout.resident_threads(*gpu))
        fill.fill(tensor, source, distributions.Unit(False))

    def halves(count):
        if (count - 1) * tensor.itemsize + 1 <= limit:
            return [count]
        return [*halves(count // 2), *halves(count - count // 2)]

    parts, offset, expected = halves(numel), 8, []
    if len(parts) > 1:
        offset += cuda_draws.policy(numel, 4, gpu)[1]
    for part in parts:
        expected += cuda_draws.grid_stride(part, 4, gpu, seed, offset, cuda_draws.four_floats)
        offset += cuda_draws.policy(part, 4, gpu)[1]
    assert tensor.tolist() == expected
    assert stream.get_offset() == offset


def test_distant_elements_reserve_numbers_before_the_split():
    """Memory of 2 GiB, of which two bytes are touched."""
    far = torch.empty(2**31, dtype=torch.uint8)[:: 2**31 - 1]
    stream = Stream(3, 8)
    fill.fill(far, fill.Source(stream, 256), distributions.Remainder(256, 0, False))
    words = [cuda_draws.Thread(3, 0, offset).four()[0] for offset in (12, 16)]
    assert far.tolist() == [word % 256 for word in words]
    assert stream.get_offset() == 8 + 12


@given(
    mean=st.floats(allow_nan=False),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    numel=st.integers(1, 60),
)
def test_a_mean_for_many_deviations_is_a_number_of_their_type(simulated, mean, dtype, numel):
    std = torch.linspace(0, 3, numel, device=simulated[0]).to(dtype)
    start(simulated[0], GPU, 1, 0)
    try:
        rounded = torch.full((), mean, dtype=dtype)
    except RuntimeError as error:  # too large for the dtype
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            torch.normal(mean, std)
        assert torch.simgpu.default_generators[0].get_offset() == 0
        return
    plain = torch.randn(numel, dtype=dtype, device=simulated[0])
    start(simulated[0], GPU, 1, 0)
    assert torch.equal(torch.normal(mean, std), plain.mul(std) + rounded.to(simulated[0]))


@given(data=st.data())
def test_zero_chance_is_never_drawn(data):
    weights = data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.7]), min_size=1, max_size=9))
    weights[data.draw(st.integers(0, len(weights) - 1))] = 0.3
    chances = np.array(weights, np.float32)
    chances /= chances.sum()
    sums = chances.cumsum(dtype=np.float32) * np.float32(0.999)  # as by rounding, below 1
    drawn = np.array([2.0**-33, 0.25, 0.5, 1.0], np.float32)
    found = _buckets(sums[None], chances[None] > 0, drawn[None])
    assert all(chances[category] > 0 for category in found[0].tolist())


@given(p=st.sampled_from([0.0, 0.3, 1.0]), numel=st.integers(1, 700), seed=st.integers(0, 99))
def test_dropout_draws_unless_training_is_off(simulated, p, numel, seed):
    """Also where nobody says whether it trains; what is dropped for certain is not drawn."""
    found = {}
    for train in (True, None, False):
        generator = start(simulated[0], GPU, seed, 8)
        mask = torch.native_dropout(torch.ones(numel, device=simulated[0]), p, train)[1]
        found[train] = mask.tolist(), generator.get_offset() - 8
    assert found[None] == found[True]
    assert found[False] == ([True] * numel, 0)
    assert found[True][1] == (0 if p == 1 else cuda_draws.policy(numel, 4, GPU)[1])


@pytest.mark.parametrize("offset", [4.0, "4", None, True])
def test_an_offset_is_a_whole_number(offset):
    with pytest.raises(TypeError, match="offset must be an int, got"):
        Stream().set_offset(offset)


def test_fewer_states_than_devices_are_of_the_first(simulated):
    torch.simgpu.manual_seed_all(1)
    states = torch.simgpu.get_rng_state_all()
    torch.rand(3, device=simulated[0]), torch.rand(3, device=simulated[1])
    torch.simgpu.set_rng_state_all(states[:1])
    offsets = [generator.get_offset() for generator in torch.simgpu.default_generators[:2]]
    assert offsets == [0, 4]
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.simgpu.set_rng_state_all(states + states[:1])


@given(ones=st.integers(25, 70), size=st.integers(1, 40), seed=st.integers(0, 100))
def test_more_dimensions_than_an_array_has_are_filled_as_one(simulated, ones, size, seed):
    torch.simgpu.manual_seed_all(seed)
    many = torch.randn([size] + [1] * ones, device=simulated[0])
    torch.simgpu.manual_seed_all(seed)
    assert torch.equal(many.flatten(), torch.randn(size, device=simulated[0]))


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


def _tossed(dtype):
    return lambda device: (
        torch.zeros(3, device=device).to(dtype).bernoulli_(torch.full((3,), 0.5, device=device))
    )


def _drawn(name, *args):
    return lambda device: getattr(torch.empty(700, device=device), name)(*args)


# What no kernel takes: PyTorch's words are the same for all devices, but for a kernel's name.
REFUSED = {
    "uniform_": [(1.0, 0.0), (0.0, float("inf"))],
    "normal_": [(0.0, -1.0)],
    "log_normal_": [(0.0, 0.0), (0.0, -1.0)],
    "cauchy_": [(0.0, 0.0), (0.0, -1.0)],
    "exponential_": [(0.0,), (-1.0,)],
    "geometric_": [(0.0,), (1.0,), (1.5,)],
    "bernoulli_": [(1.5,), (-0.5,)],
    "random_": [(5, 5), (7, 3), (0,), (2**62, None)],
}
NEVER = {
    **{f"{name}{args}": _drawn(name, *args) for name, rows in REFUSED.items() for args in rows},
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
