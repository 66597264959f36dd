"""complex32, which kernels of CUDA compute in complex64 and round once; and `abs` of booleans.

The same call in complex64 is the judge: one rounding away, and no more.
"""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.observe import place

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch says once in a process that they are experimental
    torch.empty(0, dtype=torch.complex32)

UNARY = (
    *("acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log"),
    *("rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "sum", "prod", "nansum"),
    *("neg", "abs", "sgn"),
)
# From two tensors of one dtype to what is computed of them.
CALLS = {name: lambda x, _, name=name: getattr(torch, name)(x) for name in UNARY} | {
    "/": lambda x, y: x / y,
    "/ number": lambda x, _: x / 1.7,
    "/ short number": lambda x, _: x / 1.75,  # complex32 has all its bits
    "half / complex number": lambda x, _: x.real / (1 - 2j),
    "**": lambda x, y: x**y,
    "** number": lambda x, _: x**2.5,
    "number **": lambda x, _: 1.3**x,
    "half ** complex number": lambda x, _: x.real ** (1 - 2j),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp by tensor": lambda x, y: torch.lerp(x, y, y),
    "logaddexp": torch.logaddexp,
    "gradient of sigmoid": torch.ops.aten.sigmoid_backward,
    "gradient of tanh": torch.ops.aten.tanh_backward,
    "sum of halves": lambda x, _: x.real.sum(dtype=x.dtype),
    "sum of columns": lambda x, _: x[:, None].expand(-1, 2).sum(0, keepdim=True),
}
IN_PLACE = {
    "exp": lambda x, _: x.exp_(),
    "/": lambda x, y: x.div_(y),
    "/ number": lambda x, _: x.div_(1.7),
    "** number": lambda x, _: x.pow_(2.5),
    "lerp": lambda x, y: x.lerp_(y, 0.3),
}
OUT = {
    "exp": lambda x, _, out: torch.exp(x, out=out),
    "/": lambda x, y, out: torch.div(x, y, out=out),
    "/ short number": lambda x, _, out: torch.div(x, 1.75, out=out),
    "sum": lambda x, _, out: torch.sum(x, 0, out=out),
}
PARTS = st.floats(-4, 4, width=16)
NUMBERS = st.lists(st.builds(complex, PARTS, PARTS), min_size=4, max_size=8)


def pair(numbers):
    """Two tensors of equal length, on the CPU."""
    half = len(numbers) // 2
    x = torch.tensor(numbers[: 2 * half]).to(torch.complex32)
    return x[:half], x[half:]


def parts_of(tensor):
    return torch.view_as_real(tensor.cpu()) if tensor.is_complex() else tensor.cpu()


def assert_rounded_once(got, wide):
    """Each part is at most half a last bit from that of `wide`, which has 13 bits more."""
    found, exact = parts_of(got), parts_of(wide)
    rounded = exact.half()
    finite = rounded.isfinite()
    assert torch.equal(found.isnan(), rounded.isnan())
    infinite = rounded.isinf()
    assert torch.equal(found[infinite], rounded[infinite])
    exact, found = exact[finite].double(), found[finite].double()
    assert ((found - exact).abs() <= exact.abs() * (2**-11 + 2**-20) + 2**-25).all()


@pytest.mark.parametrize("name", CALLS)
@given(numbers=NUMBERS, slot=st.integers(0, 7))
def test_complex_halves_are_computed_in_floats_and_rounded_once(devices, name, numbers, slot):
    x, y = (part.to(place(slot, devices)) for part in pair(numbers))
    if x.device.type == "cuda" and name in ("/", "number **"):
        pytest.skip("CUDA has other formulas for complex64")
    got = CALLS[name](x, y)
    wide = CALLS[name](x.to(torch.complex64), y.to(torch.complex64))
    assert got.device == x.device
    assert got.dtype == (torch.complex32 if wide.is_complex() else torch.float16)
    assert_rounded_once(got, wide)


OTHERS = (torch.complex32, torch.complex64, torch.float16, torch.float32, torch.int64)


@given(
    numbers=NUMBERS,
    dtype=st.sampled_from(OTHERS),
    no_dimension=st.booleans(),
    swap=st.booleans(),
    slot=st.integers(0, 7),
)
def test_only_results_in_complex_halves_are_rounded(
    devices, numbers, dtype, no_dimension, swap, slot
):
    x, y = (part.to(place(slot, devices)) for part in pair(numbers))
    y = (y if dtype.is_complex else y.real).to(dtype)
    y = y[0] if no_dimension else y
    if x.device.type == "cuda":  # whose formula for complex64 gives infinities other signs
        assume((x if swap else y).cpu().abs().all())
    operands = (y, x) if swap else (x, y)
    got = torch.div(*operands)
    assert got.dtype == torch.result_type(*operands)
    wide = torch.div(*(each.to(torch.complex64) for each in operands))
    if got.dtype == torch.complex64:
        assert same_bits(got, wide)
    else:
        assert_rounded_once(got, wide)


@pytest.mark.parametrize("name", IN_PLACE)
@given(numbers=NUMBERS, slot=st.integers(0, 7))
def test_complex_halves_are_changed_in_place(devices, name, numbers, slot):
    x, y = (part.to(place(slot, devices)) for part in pair(numbers))
    if x.device.type == "cuda" and name == "/":
        pytest.skip("CUDA has other formulas for complex64")
    wide = CALLS[name](x.to(torch.complex64), y.to(torch.complex64))
    whole = torch.zeros(len(x), 2, dtype=x.dtype, device=x.device)
    whole[:, 1] = x
    column, before = whole[:, 1], whole._version
    assert IN_PLACE[name](column, y) is column
    assert whole._version > before
    assert_rounded_once(whole[:, 1], wide)  # signs of zeros depend on where the numbers lie
    assert not whole[:, 0].cpu().any()


@pytest.mark.parametrize("name", OUT)
@given(
    numbers=NUMBERS,
    dtype=st.sampled_from([torch.complex32, torch.complex64, torch.complex128]),
    size=st.integers(0, 5),
    slot=st.integers(0, 7),
)
def test_output_has_rounded_numbers(devices, name, numbers, dtype, size, slot):
    x, y = (part.to(place(slot, devices)) for part in pair(numbers))
    out = torch.empty(size, dtype=dtype, device=x.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an output with elements is resized
        assert OUT[name](x, y, out) is out
    if name == "sum" and dtype != torch.complex32:  # adds up in the dtype of its output
        assert out == x.sum(dtype=dtype)
    else:
        assert same_bits(out, CALLS[name](x, y).to(dtype))


def same_bits(one, other):
    """Whether two tensors have the same numbers; any NaN is like another."""
    pairs = zip(parts_of(one).flatten(), parts_of(other).flatten(), strict=True)
    return one.shape == other.shape and all(str(a.item()) == str(b.item()) for a, b in pairs)


@given(numbers=NUMBERS)
def test_one_number_is_copied_and_a_wider_norm_is_one_of_wider_numbers(devices, numbers):
    x = pair(numbers)[0].to(devices[0])
    assert x[:1].all() == x[:1].any() == bool(x[0])
    wide = torch.linalg.vector_norm(x, dtype=torch.complex64)
    assert wide == torch.linalg.vector_norm(x.to(torch.complex64))


@given(values=st.lists(st.booleans(), max_size=4), slot=st.integers(0, 7))
def test_booleans_are_their_own_magnitude(devices, values, slot):
    x = torch.tensor(values, dtype=torch.bool, device=place(slot, devices))
    out = torch.empty(0, dtype=torch.bool, device=x.device)
    assert torch.abs(x, out=out) is out
    copy = x.clone()
    assert copy.abs_() is copy
    for found in (x.abs(), out, copy):
        assert (found.dtype, found.device) == (torch.bool, x.device)
        assert found.tolist() == values
    assert F.softsign(x).tolist() == [value / 2 for value in values]
