"""Fourier transforms of half precision, which CUDA has and the CPU has not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.torch_version import TorchVersion

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

NORMS = st.sampled_from([None, "forward", "backward", "ortho"])
TO_REAL = ("irfft", "irfft2", "irfftn", "hfft", "hfft2", "hfftn")
NAMES = (
    *TO_REAL,
    *(f"{name}{end}" for name in ("fft", "ifft", "rfft", "ihfft") for end in ("", "2", "n")),
)


def options(name, dim, size):
    """Of a transform of the last dimension, of the last two, or of two that are named."""
    if name[-1] == "t":
        return {"dim": dim, "n": size}
    dims = (0, 1) if dim == 0 else (-2, -1)
    return {"dim": dims, "s": None if size is None else (4, size)}


@pytest.mark.parametrize("name", NAMES)
@given(norm=NORMS, dim=st.sampled_from([0, -1]), size=st.sampled_from([None, 4, 16]))
def test_transform_of_halves_matches_floats(devices, name, norm, dim, size):
    """To the rounding of its result, which the GPU computes in half precision as well."""
    function = getattr(torch.fft, name)
    size = 8 if size is None and name in TO_REAL else size
    x = torch.arange(4.0 * 4 * 8).reshape(4, 4, 8).remainder(5) / 4
    half = x.half().to(devices[-1]).requires_grad_()
    found = function(half, norm=norm, **options(name, dim, size))
    expected = function(x, norm=norm, **options(name, dim, size))
    assert found.dtype == (torch.float16 if name in TO_REAL else torch.complex32)
    assert (found.device, found.shape) == (devices[-1], expected.shape)
    bound = 2**-9 * x.abs().sum()
    assert (found.detach().cpu().to(expected.dtype) - expected).abs().max() <= bound
    (grad,) = torch.autograd.grad(found.abs().float().sum(), half)
    assert grad.dtype == torch.float16


# Each transforms seven numbers.
SEVEN = {
    "fft": torch.fft.fft,
    "fftn": torch.fft.fftn,
    "irfft": lambda x: torch.fft.irfft(x, 7),
    "istft": lambda x: torch.istft(
        torch.ones(4, 9, dtype=torch.complex32, device=x.device), 7, window=x
    ),
    "rfft": torch.fft.rfft,
    "stft": lambda x: torch.stft(x.repeat(4), 7, return_complex=True),
}


@pytest.mark.parametrize("name", SEVEN)
def test_halves_are_transformed_by_powers_of_two(devices, name):
    x = torch.ones(7, device=devices[-1])
    with pytest.raises(RuntimeError, match=r"powers of two when computing in half precision.*\[7"):
        SEVEN[name](x.half())
    if name != "istft":
        SEVEN[name](x)


@pytest.mark.parametrize("name", ["fft", "irfft", "rfft2"])
def test_a_transform_of_bfloat16_is_one_of_floats_since_a_release(devices, name):
    function, x = getattr(torch.fft, name), torch.ones(3, 7, device=devices[-1])
    if TorchVersion(torch.__version__) < "2.14":
        with pytest.raises(RuntimeError, match="Unsupported dtype BFloat16"):
            function(x.bfloat16())
        return
    assert torch.equal(function(x.bfloat16()), function(x))
