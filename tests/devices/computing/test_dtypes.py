"""Dtypes that kernels of CUDA have or lack, whatever the kernels of the CPU have; not products."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch.torch_version import TorchVersion

from tests.support.observe import place


def maker(device, dtype):
    return lambda *sizes: torch.ones(sizes, dtype=dtype, device=device)


# What is computed of float16 (and most of bfloat16) on CUDA, and not by kernels of the CPU.
HALVES = {
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "antialias": lambda x: F.interpolate(x[0], size=(3, 3), mode="bilinear", antialias=True),
    "antialias, bicubic": lambda x: F.interpolate(
        x[0], size=(3, 3), mode="bicubic", antialias=True
    ),
    "multi_margin_loss": lambda x: F.multi_margin_loss(
        x.flatten(1), torch.ones(len(x), dtype=torch.int64, device=x.device)
    ),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(
        x.flatten(1), torch.ones_like(x.flatten(1), dtype=torch.int64)
    ),
}


@given(dtype=st.sampled_from([torch.float64, torch.complex64]), dims=st.integers(1, 3))
def test_other_numbers_are_convolved(devices, dtype, dims):
    make = maker(devices[0], dtype)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    operands = make(1, 1, *[3] * dims), make(1, 1, *[2] * dims)
    assert (convolve(*operands) - 2**dims).abs().max() < 1e-4
    if dtype.is_complex:  # conv1d and its kin hand on their real and imaginary parts
        with pytest.raises(RuntimeError, match="not supported for ComplexFloat"):
            torch.convolution(*operands, None, [1] * dims, [0] * dims, [1] * dims, False, [0], 1)


@pytest.mark.usefixtures("words_of_newer_cuda")
@given(dtype=st.sampled_from([torch.float16, torch.bfloat16]), wide=st.booleans())
def test_halves_have_neither_angle_nor_incomplete_gamma(devices, dtype, wide):
    x = maker(devices[0], dtype)(2)
    calls = {
        "angle_cuda": torch.angle,
        "igamma_cuda": lambda x: torch.igamma(x, x),
        "igammac_cuda": lambda x: torch.special.gammaincc(x, x),
    }
    if TorchVersion(torch.__version__) >= "2.14":  # which has the first
        assert calls.pop("angle_cuda")(x).dtype == dtype
    for kernel, call in calls.items():
        with pytest.raises(NotImplementedError, match=f'"{kernel}" not implemented for'):
            call(x)
        assert call(x[:0]).shape == (0,)  # nothing to compute
        other = torch.float32 if wide else torch.float64  # which the kernel has
        assert call(x.to(other)).dtype == other
    assert torch.igamma(x, x.float()).dtype == torch.float32
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        torch.igamma(x, maker(devices[0], dtype)(3))


def unpooled(x):
    indices = torch.tensor([[[[3]]]], device=x.device)
    return F.max_unpool2d(x.reshape(1, 1, 1, 1), indices, 2).flatten()


# What kernels of CUDA have, and those of the CPU lack: (the call, its result of 3, the dtypes).
HAD = {
    "eye": (lambda x: torch.eye(2, dtype=x.dtype, device=x.device), [[1, 0], [0, 1]], "complex32"),
    "eye unsigned": (
        lambda x: torch.eye(2, dtype=x.dtype, device=x.device),
        [[1, 0], [0, 1]],
        "uint16",
    ),
    "count_nonzero": (torch.count_nonzero, 1, "uint16"),
    "count_nonzero of float8": (torch.count_nonzero, 1, "float8_e5m2"),
    "logsumexp": (lambda x: torch.logsumexp(x, 0), 3, "complex32"),
    "median": (torch.median, True, "bool"),
    "nanmedian": (torch.nanmedian, True, "bool"),
    "norm": (torch.norm, 3, "complex32"),
    "vector_norm": (torch.linalg.vector_norm, 3, "complex32"),
    "dist": (lambda x: torch.dist(x, x - x), 3, "complex32"),
    "ldexp": (lambda x: torch.ldexp(x, torch.ones_like(x)), [6], "complex32"),
    "normalize": (lambda x: F.normalize(x, dim=0), [1], "complex32"),
    "pairwise_distance": (lambda x: F.pairwise_distance(x, x - x, eps=0), 3, "complex32"),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x.expand(1, 1, 1), 1).flatten(), [3], "complex32"),
    "channel_shuffle": (
        lambda x: F.channel_shuffle(x.expand(1, 2, 1, 1), 2).flatten(),
        [3, 3],
        "complex32",
    ),
    "unpool": (unpooled, [0, 0, 0, 3], "int64"),
    "unpool of bytes": (unpooled, [0, 0, 0, 3], "uint8"),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", HAD)
def test_dtype_without_a_cpu_kernel_is_computed(devices, name):
    call, expected, dtype = HAD[name]
    found = call(torch.full((1,), 3, device=devices[-1]).float().to(getattr(torch, dtype)))
    assert found.device == devices[-1]
    found = found.cpu().to(torch.complex64) if found.is_complex() else found.cpu().double()
    assert torch.allclose(found.real.double(), torch.tensor(expected).double(), rtol=2**-9)


def test_large_integers_are_unpooled_as_they_are(devices):
    large = torch.tensor(2**63 - 1, device=devices[-1])
    assert unpooled(large).tolist() == [0, 0, 0, 2**63 - 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_drawn_from_gamma_distributions(devices, dtype):
    x = torch.full((1000,), 4.0, device=devices[-1], dtype=dtype)
    drawn = torch._standard_gamma(x)
    assert (drawn.device, drawn.dtype) == (devices[-1], dtype)
    assert abs(drawn.float().mean().item() - 4) < 1
    assert torch._standard_gamma_grad(x, drawn).dtype == dtype
    shares = torch._sample_dirichlet(x.view(100, 10))
    assert shares.dtype == dtype
    assert (shares.float().sum(1) - 1).abs().max() < 0.05


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.usefixtures("words_of_newer_cuda")
@given(dtype=st.sampled_from(FLOAT8), size=st.integers(2, 4))
def test_float8_pair_error_is_raised_first(devices, dtype, size):
    x = torch.ones(size, device=devices[0])
    with pytest.raises(RuntimeError, match="Promotion for Float8 Types is not supported"):
        x.to(dtype) * x
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x.to(dtype).expand(2, -1) * torch.ones(size + 1, device=devices[0]).to(dtype)
    assert (x[:0].to(dtype) * x[:0].to(dtype)).shape == (0,)


@pytest.mark.parametrize("name", HALVES)
@given(data=st.data(), seed=st.integers(0, 100))
def test_halves_are_computed_in_floats_and_rounded_once(devices, name, data, seed):
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16]))
    x = torch.randn(2, 2, 4, 4, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
    there = x.to(data.draw(st.sampled_from(devices))).requires_grad_()
    here = x.float().requires_grad_()
    result, expected = HALVES[name](there), HALVES[name](here)
    assert result.dtype == dtype
    if there.device.type == "cuda" and name == "multilabel_margin_loss":
        pytest.skip("CUDA sums its gradients in halves")
    # A GPU rounds in between, too.
    bound = {"rtol": 2**-5, "atol": 2**-7} if there.device.type == "cuda" else {}
    torch.testing.assert_close(result.cpu(), expected.to(dtype), **bound)
    (grad,) = torch.autograd.grad(result.sum(), there)
    (expected_grad,) = torch.autograd.grad(expected.sum(), here)
    assert grad.dtype == dtype
    torch.testing.assert_close(grad.cpu(), expected_grad.to(dtype), **bound)


WIDE_OUTPUTS = {
    "avg_pool3d": lambda x, out: torch._C._nn.avg_pool3d(x.half(), 2, out=out),
    "histc": lambda x, out: torch.histc(x.int(), 3, 0, 2, out=out),
}


@pytest.mark.parametrize("name", WIDE_OUTPUTS)
@given(
    slot=st.integers(0, 7), shape=st.lists(st.integers(0, 4), max_size=3), size=st.integers(2, 5)
)
def test_output_of_a_wider_computation_is_resized(devices, name, slot, shape, size):
    call = WIDE_OUTPUTS[name]
    dtype = torch.float16 if name == "avg_pool3d" else torch.int32
    x = torch.ones(1, 2, size, size, size, device=place(slot, devices))
    out = torch.empty(shape, dtype=dtype, device=x.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an output with elements is resized
        found = call(x, out)
    half = size // 2
    assert found is out
    assert out.tolist() == (
        [[[[[1.0] * half] * half] * half] * 2] if name == "avg_pool3d" else [0, 2 * size**3, 0]
    )


@given(
    values=st.lists(st.integers(-20, 20), min_size=1, max_size=20),
    bins=st.integers(1, 7),
    dtype=st.sampled_from([torch.int8, torch.int32, torch.int64]),
)
def test_integers_have_a_histogram(devices, values, bins, dtype):
    x = torch.tensor(values, dtype=dtype)
    found = torch.histc(x.to(devices[0]), bins, -21, 21)
    assert found.dtype == dtype
    assert found.tolist() == torch.histc(x.double(), bins, -21, 21).tolist()


@given(
    parts=st.lists(st.sampled_from([1.0, -2.0, float("nan")]), min_size=1, max_size=6),
    keepdim=st.booleans(),
)
def test_complex_numbers_are_added_but_for_nan(devices, parts, keepdim):
    real = torch.tensor(parts)
    found = torch.nansum(torch.complex(real, torch.ones(len(parts))).to(devices[0]), 0, keepdim)
    kept = [part for part in parts if part == part]
    assert found.cpu().flatten().tolist() == [complex(sum(kept), len(kept))]
    assert found.dim() == keepdim
    out = torch.empty(0, dtype=torch.complex64, device=devices[0])
    x = torch.complex(real, torch.ones(len(parts))).to(devices[0])
    assert torch.equal(torch.nansum(x, 0, keepdim, out=out), found)


NUMBERS = (False, True, 0, 1, 2, 0.0, -0.0, 1.0, 0.1, complex(1, 0.0), complex(1, -0.0))


@given(
    numbers=st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=6),
    dtype=st.sampled_from([torch.int64, torch.bfloat16, torch.float32, torch.complex64]),
    defaults=st.lists(st.sampled_from([torch.float32, torch.float64]), min_size=1, max_size=2),
)
@example(numbers=[0.1, 1], dtype=torch.int64, defaults=[torch.float32, torch.float64])
def test_number_beside_an_output_has_its_own_type(devices, numbers, dtype, defaults):
    x = torch.ones(2, dtype=dtype)
    there = x.to(devices[0])
    before = torch.get_default_dtype()
    try:
        for default in defaults:
            torch.set_default_dtype(default)
            for number in numbers:
                try:
                    expected = torch.mul(x, number)
                except NotImplementedError:  # bfloat16 and a complex number, from PyTorch 2.15 on
                    continue
                out = torch.zeros_like(expected).to(devices[0])
                torch.mul(there, number, out=out)
                assert out.dtype == expected.dtype
                assert bits_of(out.cpu()) == bits_of(expected), (number, default)
    finally:
        torch.set_default_dtype(before)


def bits_of(tensor):
    """The bytes of a tensor, which tell zeros of both signs apart."""
    return tensor.view(torch.uint8).tolist()
