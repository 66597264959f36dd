"""Products of dtypes that kernels of CUDA have or lack, whatever the kernels of the CPU have."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

INTEGERS = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
}


def maker(device, dtype):
    return lambda *sizes: torch.ones(sizes, dtype=dtype, device=device)


def refused(kernel, dtype, call):
    with pytest.raises(NotImplementedError) as caught:
        call()
    assert str(caught.value).startswith(f"\"{kernel}\" not implemented for '{INTEGERS[dtype]}'")


SIZES = st.integers(1, 4)

# From a maker of tensors and three sizes to a product; the kernel of CUDA that its error names.
PRODUCTS = {
    "mm": (lambda make, n, k, m: torch.mm(make(n, k), make(k, m)), "addmm_cuda"),
    "mm, out=": (
        lambda make, n, k, m: torch.mm(make(n, k), make(k, m), out=make(n, m)),
        "addmm_cuda",
    ),
    "@": (lambda make, n, k, m: make(n, k) @ make(k, m), "addmm_cuda"),
    "addmm": (
        lambda make, n, k, m: torch.addmm(make(n, m), make(n, k), make(k, m)),
        "addmm_cuda",
    ),
    "_addmm_activation": (
        lambda make, n, k, m: torch._addmm_activation(make(m), make(n, k), make(k, m)),
        "addmm_cuda",
    ),
    "addmm_": (lambda make, n, k, m: make(n, m).addmm_(make(n, k), make(k, m)), "addmm_cuda"),
    "addbmm": (
        lambda make, n, k, m: torch.addbmm(make(n, m), make(2, n, k), make(2, k, m)),
        "addmm_cuda",
    ),
    "linear": (lambda make, n, k, m: F.linear(make(n, k), make(m, k), make(m)), "addmm_cuda"),
    "mv": (lambda make, n, k, m: make(n, k) @ make(k), "addmv_impl_cuda"),
    "addmv": (lambda make, n, k, m: torch.addmv(make(n), make(n, k), make(k)), "addmv_impl_cuda"),
    "bmm": (lambda make, n, k, m: make(2, n, k) @ make(2, k, m), "baddbmm_cuda"),
    "baddbmm": (
        lambda make, n, k, m: torch.baddbmm(make(2, n, m), make(2, n, k), make(2, k, m)),
        "baddbmm_cuda",
    ),
    "dot": (lambda make, n, k, m: torch.dot(make(k), make(k)), "dot"),
    "vdot": (lambda make, n, k, m: torch.vdot(make(k), make(k)), "dot"),
}


@pytest.mark.parametrize("name", PRODUCTS)
@given(data=st.data(), dtype=st.sampled_from(list(INTEGERS)), sizes=st.tuples(SIZES, SIZES, SIZES))
def test_integers_have_no_products(devices, name, data, dtype, sizes):
    """The best-known call that works on the CPU, and ends a program on a GPU."""
    call, kernel = PRODUCTS[name]
    make = maker(data.draw(st.sampled_from(devices)), dtype)
    if name == "bmm" and sizes[1] == 1 and devices[0].type == "cuda":
        return  # since 2.13 a kernel of Triton's computes it, where Triton is installed
    refused(kernel, dtype, lambda: call(make, *sizes))


@given(dtype=st.sampled_from([torch.int64, torch.uint8]), inner=SIZES, outer=SIZES)
def test_other_mistakes_are_reported_before_a_missing_kernel(devices, dtype, inner, outer):
    make, floats = maker(devices[0], dtype), maker(devices[0], torch.float32)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        make(2, inner) @ make(inner + outer, 2)
    for pair in ((make(2, 2), floats(2, 2)), (floats(2, 2), make(2, 2))):
        with pytest.raises(RuntimeError, match="to have the same dtype"):
            torch.mm(*pair)


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "mv"])
@given(data=st.data(), dtype=st.sampled_from([torch.int64, torch.bool]))
def test_wrong_devices_of_integers_raise_first(devices, name, data, dtype):
    call, _ = PRODUCTS[name]
    places = data.draw(st.permutations([*devices, torch.device("cpu")]))
    with pytest.raises(RuntimeError, match="same device"):
        call(lambda *sizes: torch.ones(sizes, dtype=dtype, device=places.pop()), 2, 2, 2)


@given(dtype=st.sampled_from([torch.int64, torch.uint8]), n=SIZES, m=SIZES)
def test_an_empty_product_of_integers_is_none(devices, dtype, n, m):
    make = maker(devices[0], dtype)
    assert (make(n, 0) @ make(0, m)).tolist() == [[0] * m] * n
    assert (make(0, n) @ make(n, m)).shape == (0, m)
    assert (make(2, n, 0) @ make(2, 0, m)).tolist() == [[[0] * m] * n] * 2


@pytest.mark.parametrize("name", ["mm", "mm, out=", "@"])
@given(dtype=st.sampled_from([torch.float16, torch.float32]), sizes=st.tuples(SIZES, SIZES, SIZES))
def test_product_is_never_a_negative_zero(devices, name, dtype, sizes):
    """cuBLAS adds to 0; the CPU's kernels leave out that sum where it has one product."""
    call, _ = PRODUCTS[name]
    factors = iter([-1.0, 0.0])
    make = maker(devices[0], dtype)
    products = call(lambda *shape: make(*shape).fill_(next(factors, 5.0)), *sizes)
    assert not products.any()
    assert not products.signbit().any()


FLOAT8 = (
    *(torch.float8_e4m3fn, torch.float8_e5m2),  # which cuBLAS knows
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
)


@pytest.mark.usefixtures("words_of_newer_cuda", "float8_products")
@given(pair=st.tuples(st.sampled_from(FLOAT8), st.sampled_from(FLOAT8)), out=st.booleans())
def test_float8_dtypes_without_a_cublas_product_raise(devices, pair, out):
    device = devices[0]
    one = torch.ones((), device=device)
    a, b = (torch.ones(16, 16, device=device).to(dtype) for dtype in pair)
    options = {"out_dtype": torch.bfloat16}
    if out:
        options["out"] = torch.empty(16, 16, device=device, dtype=torch.bfloat16)
    error = RuntimeError
    strange = [dtype for dtype in reversed(pair) if dtype not in FLOAT8[:2]]
    if strange:
        name = str(strange[0]).removeprefix("torch.").capitalize()
        words = f"Cannot convert ScalarType {name} to cudaDataType"
    elif pair == (torch.float8_e5m2,) * 2:
        error, words = ValueError, "Multiplication of two Float8_e5m2 matrices is not supported"
    else:
        assert torch._scaled_mm(a, b.t(), one, one, **options).tolist() == [[16.0] * 16] * 16
        return
    with pytest.raises(error, match=words):
        torch._scaled_mm(a, b.t(), one, one, **options)


@pytest.mark.usefixtures("float8_products")
@given(
    dtype=st.sampled_from(FLOAT8[:2]),
    number=st.sampled_from([1.0, 16.0, -400.0]),
    out=st.booleans(),
)
def test_product_in_float8_saturates(devices, dtype, number, out):
    """Not to infinity or NaN, as a conversion does: cuBLAS writes the largest number."""
    device = devices[0]
    one = torch.ones((), device=device)
    a = torch.full((16, 16), number, device=device).to(torch.float8_e4m3fn)
    b = torch.full((16, 16), 400.0, device=device).to(torch.float8_e4m3fn).t()
    options = {"out": torch.empty(16, 16, device=device, dtype=dtype)} if out else {}
    product = torch._scaled_mm(a, b, one, one, out_dtype=dtype, **options)
    most = torch.finfo(dtype).max
    expected = (a.float() @ b.float()).clamp(-most, most).to(dtype)
    assert product.dtype == dtype
    assert product.tolist() == expected.tolist()


# From a maker of tensors, what may be added, and a dtype of the result, to a product with it.
WITH_OUT_DTYPE = {
    "mm": lambda a, b, _, dtype: torch.mm(a, b, out_dtype=dtype),
    "mm, out=": lambda a, b, _, dtype: torch.mm(
        a, b, out_dtype=dtype, out=torch.empty(0, dtype=dtype, device=a.device)
    ),
    "bmm": lambda a, b, _, dtype: torch.bmm(a[None], b[None], out_dtype=dtype)[0],
    "addmm": lambda a, b, c, dtype: torch.addmm(c, a, b, out_dtype=dtype, beta=2, alpha=3),
    "baddbmm": lambda a, b, c, dtype: torch.baddbmm(
        c[None], a[None], b[None], out_dtype=dtype, beta=2, alpha=3
    )[0],
}


@pytest.mark.usefixtures("words_of_newer_cuda")
@given(
    name=st.sampled_from(sorted(WITH_OUT_DTYPE)),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    wide=st.booleans(),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    seed=st.integers(0, 99),
)
def test_a_product_of_halves_is_returned_as_floats(devices, name, dtype, wide, sizes, seed):
    """Small integers are exact in any order; products of 11 bits are not exact in a half."""
    random = torch.Generator().manual_seed(seed)
    n, k, m = sizes
    a, b, c = (
        torch.randint(-2047, 2048, size, generator=random).float()
        for size in ((n, k), (k, m), (n, m))
    )
    a, b = (x.bfloat16().float() for x in (a, b)) if dtype == torch.bfloat16 else (a, b)
    out_dtype = torch.float32 if wide else dtype
    scales = (2, 3) if "add" in name else (0, 1)
    c = c.to(dtype).float()
    exact = scales[0] * c.double() + scales[1] * (a.double() @ b.double())
    there = [x.to(devices[0], dtype) for x in (a, b, c)]
    got = WITH_OUT_DTYPE[name](*there, out_dtype)
    assert (got.device, got.dtype) == (devices[0], out_dtype)
    # Each sum is below 2^26, of which a float has 24 bits; a half is rounded, or infinite.
    bound = 1e-6 if wide else torch.finfo(dtype).eps
    expected = exact.to(out_dtype).double()
    finite = expected.isfinite()
    close = (got.double().cpu() - expected).abs() <= bound * (
        scales[0] * c.double().abs() + scales[1] * (a.double().abs() @ b.double().abs())
    )
    assert close[finite].all()


@pytest.mark.usefixtures("words_of_newer_cuda")
@given(
    name=st.sampled_from(sorted(WITH_OUT_DTYPE)),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.int64]),
    other=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int64]),
    out_dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float64, torch.int64]),
)
@example(
    name="baddbmm", dtype=torch.int64, other=torch.int64, out_dtype=torch.float16
)  # PyTorch's meta kernel knows none
def test_a_product_has_no_other_out_dtype(devices, name, dtype, other, out_dtype):
    a, b, c = (torch.ones(2, 2, device=devices[0]).to(each) for each in (dtype, other, dtype))
    if dtype != other:
        words = "dtypes? must be the same|must have the same dtype"
    elif out_dtype != dtype:
        words = "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"
    elif dtype == torch.int64:
        words = "(b?addb?mm|addmm)_cuda\" not implemented for 'Long'"
    else:
        assert WITH_OUT_DTYPE[name](a, b, c, out_dtype).dtype == out_dtype
        return
    with pytest.raises(RuntimeError, match=words):
        WITH_OUT_DTYPE[name](a, b, c, out_dtype)
