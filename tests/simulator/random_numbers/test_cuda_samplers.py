"""Every operator that draws gives CUDA's numbers: dtypes, ranges, layouts, masks, permutations.

Compared with the kernels in plain Python (tests/support/cuda_draws.py), on GPUs so small that a few
hundred elements are more than they hold threads.
"""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import simgpu
from simgpu._core import world
from simgpu._random import layout
from tests.support import attention, cuda_draws
from tests.support.cuda_draws import to_float

seeds = st.integers(0, 2**64 - 1)
gpus = st.tuples(st.integers(1, 2), st.sampled_from([256, 512]))
sizes = st.one_of(st.integers(1, 30), st.integers(200, 2500))
offsets = st.integers(0, 2**40).map(lambda place: 4 * place)
REAL = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def start(device, gpu, seed, offset):
    """Let the device be this GPU, with its generator at this point."""
    world.device(device.index).resident_threads = layout.resident_threads(*gpu)
    torch.simgpu.default_generators[0].manual_seed(seed).set_offset(offset)


def moved():
    return torch.simgpu.default_generators[0].get_offset()


def rounded(numbers, dtype):
    """Numbers rounded to a dtype as a GPU stores them: over float, but for doubles."""
    wide = torch.tensor(numbers, dtype=torch.float64)
    return (wide if dtype is torch.float64 else wide.float()).to(dtype)


@pytest.mark.parametrize("dtype", REAL)
@given(numel=sizes, gpu=gpus, seed=seeds, offset=offsets,
       low=st.sampled_from([0.0, -1.0, 0.1, -3.7]),
       span=st.sampled_from([1.0, 0.3, 8.9, 0.0, 2.0**-22]))  # fmt: skip
def test_uniform(simulated, dtype, numel, gpu, seed, offset, low, span):
    device = simulated[0]
    start(device, gpu, seed, offset)
    drawn = torch.empty(numel, dtype=dtype, device=device).uniform_(low, low + span).cpu()
    double = dtype is torch.float64
    unroll, numbers = (2, cuda_draws.two_doubles) if double else (4, cuda_draws.four_floats)
    units = cuda_draws.grid_stride(numel, unroll, gpu, seed, offset, numbers)
    first, last = torch.tensor([low, low + span], dtype=torch.float64).to(dtype)
    width = (last - first).item()
    if double:
        # Rounded once, as by a fused multiply-add: from fractions, which are exact.
        values = torch.tensor(
            [float(Fraction(unit) * Fraction(width) + Fraction(first.item())) for unit in units],
            dtype=torch.float64,
        )
    else:
        exact = [unit * width + first.item() for unit in units]  # 24 and 24 bits: nearly exact
        values = rounded(exact, dtype)
    values = torch.where(values == last, first, values)
    assert torch.equal(drawn, values)
    assert moved() == offset + cuda_draws.policy(numel, unroll, gpu)[1]


@pytest.mark.parametrize("dtype", REAL)
@given(numel=sizes, gpu=gpus, seed=seeds, mean=st.sampled_from([0.0, 5.0]),
       std=st.sampled_from([1.0, 0.5]))  # fmt: skip
def test_normal(simulated, dtype, numel, gpu, seed, mean, std):
    device = simulated[0]
    start(device, gpu, seed, 8)
    drawn = torch.empty(numel, dtype=dtype, device=device).normal_(mean, std).cpu()
    double = dtype is torch.float64
    unroll, numbers = (2, cuda_draws.two_normals) if double else (4, cuda_draws.four_normals)
    normals = cuda_draws.grid_stride(numel, unroll, gpu, seed, 8, numbers)
    expected = torch.tensor(normals, dtype=torch.float64) * std + mean
    error = (drawn.double() - expected).abs().max().item()
    # Six roundings of floats up to 7, and the last one.
    roundings = 1e-13 if double else 1e-5
    assert error <= roundings + (expected.abs().max().item() * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("p", [1e-12, 1 - 1e-12])
def test_chances_that_are_0_or_1_as_a_float(simulated, dtype, p):
    """Nobody is warned of the logarithm of 0, nor of a quotient by it."""
    drawn = torch.empty(9, dtype=dtype, device=simulated[0]).geometric_(p)
    assert set(drawn.double().abs().tolist()) == {0.0} if p > 0.5 else bool((drawn < 0).all())


@pytest.mark.parametrize("dtype", WHOLE + REAL)
@given(data=st.data(), numel=sizes, gpu=gpus, seed=seeds)
def test_random_integers(simulated, dtype, data, numel, gpu, seed):
    """All dtypes and ranges, exactly."""
    device = simulated[0]
    most = 1 if dtype is torch.bool else (
        2 ** (-int(math.log2(torch.finfo(dtype).eps)) + 1)
        if dtype.is_floating_point else torch.iinfo(dtype).max
    )  # fmt: skip
    least = -most if dtype not in (torch.uint8, torch.bool) else 0
    low = data.draw(st.integers(least, most - 1))
    high = data.draw(st.none() | st.integers(low + 1, most))
    start(device, gpu, seed, 12)
    tensor = torch.empty(numel, dtype=dtype, device=device)
    if data.draw(st.booleans()):
        drawn = tensor.random_(low, high)
        span = (most + 1 if high is None else high) - low
        wide = span >= 2**28
    else:
        drawn, low = tensor.random_(), 0
        span, wide = most + 1, dtype in (torch.int64, torch.float64)
    unroll, numbers = (2, cuda_draws.two_wide) if wide else (4, cuda_draws.four_words)
    bits = cuda_draws.grid_stride(numel, unroll, gpu, seed, 12, numbers)
    expected = [word % span + low for word in bits]
    if dtype is torch.bool:
        expected = [bool(number) for number in expected]
    assert drawn.tolist() == expected
    assert moved() == 12 + cuda_draws.policy(numel, unroll, gpu)[1]


@given(numel=sizes, seed=seeds)
def test_all_64_bits(simulated, numel, seed):
    device = simulated[0]
    start(device, (1, 256), seed, 0)
    drawn = torch.empty(numel, dtype=torch.int64, device=device).random_(-(2**63), None)
    bits = cuda_draws.grid_stride(numel, 2, (1, 256), seed, 0, cuda_draws.two_wide)
    assert drawn.tolist() == [word - 2**64 if word >= 2**63 else word for word in bits]


@given(data=st.data(), shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=seeds)
def test_memory_is_filled_in_its_order(simulated, data, shape, seed):
    """A permuted tensor is filled as it lies; of a strided one, the gaps are left out."""
    device = simulated[0]
    gpu = 1, 256
    start(device, gpu, seed, 0)
    order = data.draw(st.permutations(range(len(shape))))
    whole = torch.zeros([shape[dim] for dim in order], device=device)
    if data.draw(st.booleans()):
        whole = torch.zeros([*whole.shape, 2], device=device)[..., 0]
    tensor = whole.permute([order.index(dim) for dim in range(len(shape))])
    assert tensor.shape == torch.Size(shape)
    tensor.uniform_()
    numel = math.prod(shape)
    units = cuda_draws.grid_stride(numel, 4, gpu, seed, 0, cuda_draws.four_floats)
    assert whole.reshape(-1).tolist() == [0 if unit == 1 else unit for unit in units]


@pytest.mark.parametrize("dtype", REAL)
@given(data=st.data(), gpu=gpus, seed=seeds, p=st.sampled_from([0.1, 0.5, 0.9]))
def test_dropout(simulated, dtype, data, gpu, seed, p):
    """Elements that a thread takes at once: as many as address and size allow, up to 16 bytes."""
    device = simulated[0]
    start(device, gpu, seed, 16)
    numel = data.draw(st.one_of(st.integers(1, 40), st.integers(100, 1200).map(lambda n: 4 * n)))
    skipped = data.draw(st.sampled_from([0, 0, 1, 2, 4]))
    x = torch.ones(skipped + numel, dtype=dtype, device=device)[skipped:]
    kept, mask = torch.native_dropout(x, p, True)
    at_once = 16 // x.itemsize
    while at_once > 1 and (skipped % at_once or numel % at_once):
        at_once //= 2
    keep = 1 - p if dtype is torch.float64 else to_float(1 - p)
    if at_once > 1:
        words = cuda_draws.side_by_side(numel, at_once, gpu, seed, 16)
    else:
        words = cuda_draws.grid_stride(numel, 4, gpu, seed, 16, cuda_draws.four_words)
    expected = [cuda_draws.unit_float(word) < keep for word in words]
    assert mask.tolist() == expected
    scale = rounded([1 / keep], dtype)
    assert torch.equal(kept.cpu(), torch.tensor(expected) * scale)
    assert moved() == 16 + cuda_draws.policy(numel, 4, gpu)[1]


@given(data=st.data(), shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), seed=seeds,
       double=st.booleans())  # fmt: skip
def test_tosses_by_a_tensor_do_not_depend_on_the_gpu(simulated, data, shape, seed, double):
    device = simulated[0]
    gpu = data.draw(gpus)
    start(device, gpu, seed, 4)
    dtype = torch.float64 if double else torch.float32
    chances = torch.rand(shape, dtype=dtype)
    units = torch.tensor(cuda_draws.tossed_by_tensor(chances.numel(), seed, 4), dtype=dtype)
    if data.draw(st.booleans()):  # a number equal to the chance is a success
        chances = units.view(shape).clone()
    drawn = torch.bernoulli(chances.to(device))
    assert torch.equal(drawn.cpu(), (units.view(shape) <= chances).to(dtype))
    assert moved() == 4 + 12
    # Tensor and chances that lie alike are walked through as they lie, others by their indices.
    back = [*reversed(range(len(shape)))]
    tensor = torch.empty(shape[::-1], dtype=dtype, device=device).permute(back)
    alike = data.draw(st.booleans())
    there = chances.to(device)
    start(device, gpu, seed, 4)
    tensor.bernoulli_(there.permute(back).contiguous().permute(back) if alike else there)
    if alike:
        units, chances, tensor = (
            x.permute(back) for x in (units.view(shape[::-1]).permute(back), chances, tensor)
        )
    expected = units.reshape(chances.shape) <= chances
    assert torch.equal(tensor.cpu(), expected.to(dtype))


@given(numel=st.integers(1, 700), gpu=gpus, seed=seeds, offset=offsets)
def test_permutations(simulated, numel, gpu, seed, offset):
    device = simulated[0]
    start(device, gpu, seed, offset)
    expected, after = cuda_draws.permutation(numel, gpu, seed, offset)
    assert torch.randperm(numel, device=device).tolist() == expected
    assert moved() == after


def test_a_permutation_with_equal_keys(simulated):
    start(simulated[0], (1, 256), 5, 0)
    expected, _ = cuda_draws.permutation(600, (1, 256), 5, 0)
    assert torch.randperm(600, device=simulated[0]).tolist() == expected


@given(rows=st.integers(1, 4), categories=st.integers(1, 9), samples=st.integers(2, 300),
       seed=seeds)  # fmt: skip
def test_multinomial_with_replacement(simulated, rows, categories, samples, seed):
    device = simulated[0]
    weights = torch.rand(rows, categories).clamp(min=0.01)
    start(device, (1, 512), seed, 4)
    drawn = torch.multinomial(weights.to(device), samples, replacement=True).tolist()
    assert moved() == 8
    sums = (weights.double() / weights.double().sum(1, keepdim=True)).cumsum(1)
    width = (samples + 127) // 128 * 128
    for row in range(rows):
        for sample in range(samples):
            word = cuda_draws.Thread(seed, row * width + sample, 4).four()[0]
            unit, found = cuda_draws.unit_float(word), drawn[row][sample]
            assert unit <= sums[row][found].item() + 1e-6
            assert not found or unit >= sums[row][found - 1].item() - 1e-6


@given(rows=st.integers(1, 3), categories=st.integers(1, 30), data=st.data(), gpu=gpus, seed=seeds)
def test_multinomial_without_replacement(simulated, rows, categories, data, gpu, seed):
    """The greatest of weight over an exponential number, from the greatest on; one always is."""
    samples = data.draw(st.integers(1, categories))
    weights = torch.rand(rows, categories, generator=torch.Generator().manual_seed(seed))
    weights.clamp_(min=0.01)
    start(simulated[0], gpu, seed, 12)
    drawn = torch.multinomial(weights.to(simulated[0]), samples, replacement=samples == 1).tolist()
    units = cuda_draws.grid_stride(rows * categories, 4, gpu, seed, 12, cuda_draws.four_floats)
    exponentials = torch.tensor(units).log().neg().clamp(min=2**-24).view(rows, categories)
    for scores, found in zip((weights / exponentials).tolist(), drawn, strict=True):
        assert len(set(found)) == samples
        for category, score in zip(found, sorted(scores, reverse=True), strict=False):
            assert scores[category] == pytest.approx(score, rel=1e-4)


FLASH, EFFICIENT, CUDNN = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
chances = st.sampled_from([0.0625, 0.25, 0.5, 0.8125])
lengths = st.integers(2, 40)


def case(dtype, batch, heads, rows, columns, seed):
    random = torch.Generator().manual_seed(seed % 2**32)
    shapes = (batch, heads, rows, 8), *[(batch, heads, columns, 8)] * 2
    tensors = [torch.randn(shape, generator=random).to(dtype) for shape in shapes]
    return attention.Case(*(tensor.requires_grad_() for tensor in tensors))


def dropped(case, kernel, p, seed, offset):
    """The output, its gradients, the gradient that they are by, and how far the generator moved."""
    there = case.moved("simgpu")
    generator = torch.simgpu.default_generators[0]
    generator.manual_seed(seed).set_offset(offset)
    with sdpa_kernel(kernel):
        out = scaled_dot_product_attention(there.query, there.key, there.value, dropout_p=p)
    moved = generator.get_offset() - offset
    grad = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    grads = torch.autograd.grad(out, there.leaves(), grad.to("simgpu"))
    assert generator.get_offset() - offset == moved  # the mask is made again of what was drawn
    return [each.cpu() for each in (out, *grads)], grad, moved


@given(batch=st.integers(1, 2), heads=st.integers(1, 3), rows=lengths, columns=lengths, seed=seeds,
       offset=offsets, p=chances)  # fmt: skip
def test_efficient_attention(simulated, batch, heads, rows, columns, seed, offset, p):
    """Each weight has a word of one thread, in their order."""
    whole = case(torch.float32, batch, heads, rows, columns, seed)
    got, grad, moved = dropped(whole, EFFICIENT, p, seed, offset)
    count = batch * heads * rows * columns
    words = cuda_draws.one_after_another(count, seed, offset)
    keep = torch.tensor([cuda_draws.unit_float(word) > p for word in words])
    keep = keep.view(batch, heads, rows, columns)
    attention.check(whole.with_dropout(keep, p), got, grad)
    assert moved == -(-count // 4) * 4


@given(batch=st.integers(1, 2), heads=st.integers(1, 3), rows=lengths, columns=lengths, seed=seeds,
       offset=offsets, p=chances)  # fmt: skip
def test_flash_attention(simulated, batch, heads, rows, columns, seed, offset, p):
    """Each weight has a byte of a warp that computes 16 rows and 32 columns."""
    whole = case(torch.float16, batch, heads, rows, columns, seed)
    got, grad, moved = dropped(whole, FLASH, p, seed, offset)
    most = math.floor((1 - p) * 255)
    keep = torch.tensor(
        [cuda_draws.flash_bytes(head, rows, columns, seed, offset) for head in range(batch * heads)]
    )
    attention.check(
        whole.with_dropout((keep <= most).view(batch, heads, rows, columns), p), got, grad
    )
    assert moved == batch * heads * 32


@pytest.mark.parametrize("rng", ["cuda", "host"])
@given(batch=st.integers(1, 2), heads=st.integers(1, 3), rows=lengths, columns=lengths, seed=seeds)
def test_cudnn_draws_a_number_for_each_weight(rng, batch, heads, rows, columns, seed):
    """And forward and backward pass drop the same, by whichever generator."""
    whole = case(torch.float32, batch, heads, rows, columns, seed)
    count = batch * heads * rows * columns
    with simgpu.devices(1, rng=rng), sdpa_kernel(CUDNN):
        generator = torch.simgpu.default_generators[0].manual_seed(seed)
        query, key, value = (part.detach().half().to("simgpu") for part in whole.leaves())
        value = torch.eye(columns, 8 * (-(-columns // 8)), device="simgpu").half()
        value = value.expand(batch, heads, *value.shape).requires_grad_()
        out = scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        if rng == "cuda":
            assert generator.get_offset() == -(-count // 4) * 4
        (grad,) = torch.autograd.grad(out.sum(-2)[..., 0].sum(), value)
        # A weight that was dropped has no share in the gradient of its value.
        kept = out[..., :columns] != 0
        assert torch.equal(grad[..., 0] != 0, kept.any(-2))
        again = scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        if count > 64:
            assert not torch.equal(again != 0, out != 0)
            assert kept.any()
            assert not kept.all()
