"""Random numbers are those of CUDA: the function, the threads, the elements, the offset.

Compared with another implementation (tests/support/cuda_draws.py), thread by thread in plain
Python. tests/recordings/published/random_numbers.json has what real GPUs printed.
"""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._core import world
from simgpu._random import distributions, fill, layout, philox
from simgpu._random.distributions import toss
from simgpu._random.generator_state import DEFAULT_SEED, Stream
from tests.support import cuda_draws

HEADERS = Path(torch.__file__).parent / "include"

seeds = st.integers(0, 2**64 - 1)
places = st.one_of(st.integers(0, 100), st.integers(0, 2**62 - 2**20))
# Small GPUs: a few hundred elements are more than they hold threads.
gpus = st.tuples(st.integers(1, 3), st.sampled_from([384, 256, 1024]))
sizes = st.one_of(st.integers(1, 40), st.integers(600, 6000), st.sampled_from([257, 2048, 2049]))

# Random123, tests/kat_vectors, lines "philox4x32 10": counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ("00000001 00000000 00000000 00000000", "00000001 00000000",
     "ac08141b dfc5ccbe 79c07a47 a7f66093"),
]  # fmt: skip


def hexadecimal(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_known_answers(counter, key, result):
    c0, c1, c2, c3 = hexadecimal(counter)
    k0, k1 = hexadecimal(key)
    words = philox.words_of(k1 << 32 | k0, c1 << 32 | c0, c3 << 32 | c2, 1)
    assert [int(word[0]) for word in words] == hexadecimal(result)
    assert cuda_draws.philox((c0, c1, c2, c3), (k0, k1)) == tuple(hexadecimal(result))


@given(seed=seeds, place=places, step=st.integers(1, 9), several=st.integers(1, 9),
       first=st.integers(0, 2**63), count=st.integers(1, 70), lanes=st.integers(1, 4))  # fmt: skip
def test_words_of_threads_and_places(seed, place, step, several, first, count, lanes):
    first -= first % 2**10  # all of them have the same upper half
    place -= place % 2**10 if several > 1 else 0
    words = philox.words_of(seed, place, first, count, lanes, places=several, step=step)
    for number, found in enumerate(zip(*words[:lanes], strict=True)):
        row, thread = divmod(number, count)
        expected = cuda_draws.Thread(seed, first + thread, 4 * (place + row * step)).four()
        assert found == expected[:lanes]


def header(name):
    return (HEADERS / "ATen" / name).read_text(encoding="utf-8")


def test_the_constants_are_those_of_the_installed_torch():
    """A release that draws otherwise than this one shows up here."""
    templates = header("native/cuda/DistributionTemplates.h")
    engine = header("core/PhiloxRNGEngine.h")
    numbers = dict(re.findall(r"constexpr uint32_t (kPhilox\w+) = (\w+);", engine))
    assert [int(numbers[f"kPhiloxS{which}"], 16) for which in "AB"] == list(philox.MULTIPLIERS)
    assert [int(numbers[f"kPhilox10{which}"], 16) for which in "AB"] == list(philox.KEY_STEPS)
    assert f"n_rounds = {philox.ROUNDS})" in engine
    assert f"block_size_bound = {layout.BLOCK};" in templates
    assert f"max_generator_offsets_per_curand_call = {layout.STEP};" in templates
    wide = re.findall(r"range >= 1ULL << (\d+)\)", templates.partition("#else")[2])
    assert {2 ** int(bits) for bits in wide} == {distributions.WIDE}
    assert re.findall(r"philox_cuda_state\((\d+)\)", templates) == ["10"]
    assert "/*max_threads_per_block=*/512" in templates
    assert "counter_offset = n;" in header("native/cuda/Randperm.cuh")
    generator = (HEADERS / "c10/core/GeneratorImpl.h").read_text(encoding="utf-8")
    assert f"default_rng_seed_val = {DEFAULT_SEED};" in generator
    # How words become numbers, and what is done to them.
    assert "rand * range + from" in templates
    assert "value == to ? from : value" in templates
    assert "rand.x <= p1" in templates
    transformations = header("core/TransformationHelper.h")
    for formula in (
        "(val % range) + base",
        "val * std + mean",
        "median + sigma * at::tan(c10::pi<T> * (val - static_cast<T>(0.5)))",
        "static_cast<T>(-1.0) / lambda * log",
        "::ceil(at::log(val) / at::log1p(-p))",
        "return val < p;",
    ):
        assert formula in transformations


KINDS = {
    "float": (distributions.Unit(False), 4, cuda_draws.four_floats),
    "double": (distributions.Unit(True), 2, cuda_draws.two_doubles),
    "words": (distributions.Remainder(2**32, 0, False), 4, cuda_draws.four_words),
    "wide": (distributions.Remainder(2**62, 0, True), 2,
             lambda words: [bits % 2**62 for bits in cuda_draws.two_wide(words)]),
    "toss": (toss(False, 0.3), 4,
             lambda words: [cuda_draws.unit_float(word) < cuda_draws.to_float(0.3)
                            for word in words]),
}  # fmt: skip


DTYPES = {"float": torch.float32, "double": torch.float64, "toss": torch.bool}


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(numel=sizes, gpu=gpus, seed=seeds, place=places)
def test_threads_elements_and_offset(kind, numel, gpu, seed, place):
    """For every kind of numbers, size and GPU."""
    ours, unroll, theirs = KINDS[kind]
    stream = Stream(seed, 4 * place)
    tensor = torch.empty(numel, dtype=DTYPES.get(kind, torch.int64))
    fill.fill(tensor, fill.Source(stream, layout.resident_threads(*gpu)), ours)
    assert tensor.tolist() == cuda_draws.grid_stride(numel, unroll, gpu, seed, 4 * place, theirs)
    assert stream.get_offset() == 4 * place + cuda_draws.policy(numel, unroll, gpu)[1]


def become(device, gpu):
    world.device(device.index).resident_threads = layout.resident_threads(*gpu)


@given(data=st.data(), gpu=gpus, seed=seeds)
def test_many_small_draws_one_after_the_other(simulated, data, gpu, seed):
    """Words that were computed ahead are the right ones, wherever the program goes on."""
    device = simulated[0]
    become(device, gpu)
    torch.simgpu.manual_seed(seed)
    generator = torch.simgpu.default_generators[0]
    offset = 0
    for _ in range(data.draw(st.integers(1, 16))):
        numel = data.draw(st.sampled_from([5, 5, 5, 70]))
        if data.draw(st.booleans()):
            offset = 4 * data.draw(st.sampled_from([0, 1, 2, 2**61]))
            generator.set_offset(offset)
        kind = data.draw(st.sampled_from(["rand", "rand", "random_", "dropout"]))
        if kind == "rand":
            drawn = torch.rand(numel, device=device).tolist()
            units = cuda_draws.grid_stride(numel, 4, gpu, seed, offset, cuda_draws.four_floats)
            assert drawn == [0 if unit == 1 else unit for unit in units]
        elif kind == "random_":
            drawn = torch.empty(numel, dtype=torch.int32, device=device).random_().tolist()
            words = cuda_draws.grid_stride(numel, 4, gpu, seed, offset, cuda_draws.four_words)
            assert drawn == [word % 2**31 for word in words]
        else:
            numel *= 4
            mask = torch.native_dropout(torch.ones(numel, device=device), 0.25, True)[1]
            words = cuda_draws.side_by_side(numel, 4, gpu, seed, offset)
            assert mask.tolist() == [cuda_draws.unit_float(word) < 0.75 for word in words]
        offset += cuda_draws.policy(numel, 4, gpu)[1]
        assert generator.get_offset() == offset


@pytest.mark.parametrize("kind", ["rand", "rand of a dtype", "uniform_", "dropout"])
@given(slots=st.tuples(st.integers(0, 1), st.integers(0, 1)), numel=st.integers(200, 1200),
       seed=seeds)  # fmt: skip
def test_threads_are_those_of_the_gpu_that_draws(simulated, kind, slots, numel, seed):
    """Whichever device is current, and of whichever the generator is."""
    for index in (0, 1):
        become(simulated[index], (1 + index, 256))
    slot, current = slots
    device, gpu = simulated[slot], (1 + slot, 256)
    generator = torch.Generator(simulated[current]).manual_seed(seed)
    torch.simgpu.manual_seed_all(seed)
    with torch.simgpu.device(current):
        if kind == "dropout":  # of every other element of memory: one a thread
            gaps = torch.ones(numel, 2, device=device)[:, 0]
            drawn = torch.native_dropout(gaps, 0.25, True)[1].tolist()
        elif kind == "uniform_":
            drawn = torch.empty(numel, device=device).uniform_(generator=generator).tolist()
        else:
            dtype = torch.float32 if kind == "rand" else torch.float16
            drawn = torch.rand(numel, device=device, dtype=dtype, generator=generator).tolist()
    units = cuda_draws.grid_stride(numel, 4, gpu, seed, 0, cuda_draws.four_floats)
    if kind == "dropout":
        assert drawn == [unit < 0.75 for unit in units]
    else:
        rounded = torch.tensor(units).to(torch.float16) if kind == "rand of a dtype" else units
        assert drawn == [0 if unit == 1 else float(unit) for unit in rounded]


shapes = st.one_of(
    st.lists(st.integers(-1, 5), max_size=4),
    st.sampled_from([[2048], [2049], [-2, -3], [1, 300], [0, -2, -2]]),
)


@given(shape=shapes, seed=seeds)
def test_rand_equals_an_empty_tensor_filled(simulated, shape, seed):
    """Also where it is made of numbers that were computed ahead, to which nobody may write."""
    device, generator = simulated[0], torch.simgpu.default_generators[0]
    generator.manual_seed(seed)
    if min(shape, default=0) < 0:
        with pytest.raises(RuntimeError, match="negative dimension"):
            torch.rand(shape, device=device)
        assert generator.get_offset() == 0
        return
    empty = torch.empty(shape, device=device).uniform_()
    for _ in range(3):
        generator.set_offset(0)
        drawn = torch.rand(shape, device=device)
        assert torch.equal(drawn, empty)
        assert drawn.dtype == empty.dtype
        assert drawn.stride() == empty.stride()
        assert drawn.data_ptr() % 64 == empty.data_ptr() % 64
        assert drawn.untyped_storage().nbytes() == empty.untyped_storage().nbytes()
        drawn.zero_()
