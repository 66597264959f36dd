"""What kernels of CUDA refuse for its size, layout or dtypes, where kernels of the CPU take it.

Where there is nothing to compute they are not asked for; and what the CPU lacks, Fourier transforms
of half precision.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.torch_version import TorchVersion

from tests.support.observe import plain

HALVES = st.sampled_from([torch.float16, torch.bfloat16])
LAYERS = st.sampled_from([nn.LSTM, nn.GRU, nn.RNN])


@given(layer=LAYERS, wrong=st.booleans(), which=st.integers(0, 1), rows=st.integers(2, 4))
def test_the_first_state_of_a_recurrent_layer_is_contiguous(devices, layer, wrong, which, rows):
    """The case of the state of a bidirectional encoder, of which a decoder takes one half."""
    module = layer(3, 4).to(devices[0])
    states = [torch.zeros(1, rows, 4, device=devices[0]) for _ in range(2)]
    which = which if layer is nn.LSTM else 0
    if wrong:
        states[which] = torch.zeros(1, 4, rows, device=devices[0]).mT
    x = torch.ones(5, rows, 3, device=devices[0])
    state = tuple(states) if layer is nn.LSTM else states[0]
    if wrong:
        with pytest.raises(RuntimeError, match=f"^rnn: {'hc'[which]}x is not contiguous"):
            module(x, state)
        states[which] = states[which].contiguous()
        state = tuple(states) if layer is nn.LSTM else states[0]
    assert module(x, state)[0].shape == (5, rows, 4)


def norm(kind, x, weight, bias):
    if kind == "layer":
        return F.layer_norm(x, x.shape[1:], weight, bias)
    return F.group_norm(x, 2, weight, bias)


@given(
    kind=st.sampled_from(["layer", "group"]),
    dtype=HALVES,
    given_=st.sampled_from([(True, False), (False, True), (True, True)]),
    rows=st.integers(1, 3),
)
def test_a_norm_of_halves_has_parameters_of_its_dtype(devices, kind, dtype, given_, rows):
    name = {torch.float16: "Half", torch.bfloat16: "BFloat16"}[dtype]
    x = torch.ones(rows, 4, device=devices[0], dtype=dtype)
    parameters = [torch.ones(4, device=devices[0]) if one else None for one in given_]
    with pytest.raises(RuntimeError, match=f"expected scalar type {name} but found Float"):
        norm(kind, x, *parameters)
    same = [None if parameter is None else parameter.to(dtype) for parameter in parameters]
    assert norm(kind, x, *same).dtype == dtype
    assert norm(kind, x.float(), *parameters).dtype == torch.float32


def test_shape_of_a_norm_is_checked_before_dtypes(devices):
    x = torch.ones(2, 4, device=devices[0], dtype=torch.float16)
    with pytest.raises(RuntimeError, match="Expected weight to be of same shape"):
        F.layer_norm(x, (4,), torch.ones(3, device=devices[0]))


CALLED = {
    torch.float16: "torch.{}.HalfTensor",
    torch.bfloat16: "{1}BFloat16Type",
    torch.float32: "torch.{}.FloatTensor",
    torch.float64: "torch.{}.DoubleTensor",
}


@given(
    dtypes=st.permutations(sorted(CALLED, key=str)),
    dims=st.integers(1, 3),
    transposed=st.booleans(),
)
def test_convolution_of_two_types_names_both(devices, dtypes, dims, transposed):
    convolve = getattr(F, f"conv{'_transpose' * transposed}{dims}d")
    x, weight = (
        torch.ones(2, 2, *[3] * dims, device=devices[0], dtype=dtype) for dtype in dtypes[:2]
    )
    type_ = devices[0].type
    kind = type_.upper() if type_ == "cuda" else type_
    one, other = (CALLED[dtype].format(type_, kind) for dtype in dtypes[:2])
    words = f"Input type ({one}) and weight type ({other}) should be the same"
    with pytest.raises(RuntimeError, match=f"^{re.escape(words)}$"):
        convolve(x, weight)
    assert convolve(x.double(), weight.double()).dtype == torch.float64


SIZES = st.sampled_from([8, 15, 16, 17, 24, 31, 32])


@given(rows=SIZES, inner=SIZES, columns=SIZES)
def test_int8_products_have_the_sizes_of_cublas(devices, rows, inner, columns):
    left = torch.ones(rows, inner, dtype=torch.int8, device=devices[0])
    right = torch.ones(columns, inner, dtype=torch.int8, device=devices[0]).t()
    if rows > 16 and inner % 8 == columns % 8 == 0:
        assert torch._int_mm(left, right).unique().tolist() == [inner]
        return
    with pytest.raises(RuntimeError, match=r"size\([01]\) needs to be greater than"):
        torch._int_mm(left, right)


WRONG_PRODUCTS = {
    "a batch": (lambda x: (x[None], x), "Expected self to be of dimension 2 but got 3"),
    "a vector": (lambda x: (x[0], x), "Expected self to be of dimension 2 but got 1"),
    "other rows": (
        lambda x: (x, x[:24]),
        r"self.size\(1\) needs to match mat2.size\(0\) but got 32 and 24",
    ),
    "bytes": (lambda x: (x.byte(), x), "expected scalar type Char but found Byte"),
    "integers": (lambda x: (x, x.int()), "expected scalar type Char but found Int"),
}


@pytest.mark.usefixtures("words_of_newer_cuda")
@given(wrong=st.sampled_from(sorted(WRONG_PRODUCTS)))
@example(wrong="bytes")
def test_products_of_eight_bits_are_of_two_matrices_of_int8(devices, wrong):
    """A kernel of the CPU multiplies bytes, too."""
    pair, words = WRONG_PRODUCTS[wrong]
    whole = torch.ones(32, 32, dtype=torch.int8, device=devices[0])
    assert torch._int_mm(whole, whole).unique().tolist() == [32]
    with pytest.raises(RuntimeError, match=f"^{words}"):
        torch._int_mm(*pair(whole))
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch._int_mm(whole, whole[0])


BIASES = {
    torch.bfloat16: (torch.bfloat16,),
    torch.float16: (torch.float16,),
    torch.float8_e4m3fn: (torch.bfloat16, torch.float16),
    torch.float32: (),
}


@pytest.mark.usefixtures("float8_products")
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    out=st.sampled_from(sorted(BIASES, key=str)),
)
@example(dtype=torch.bfloat16, out=torch.float32)
@example(dtype=torch.float16, out=torch.bfloat16)
@example(dtype=torch.float32, out=torch.bfloat16)
def test_float8_bias_has_a_dtype_of_cublas(devices, dtype, out):
    x = torch.ones(16, 16, device=devices[0]).to(torch.float8_e4m3fn)
    one = torch.ones((), device=devices[0])
    bias = torch.ones(16, device=devices[0], dtype=dtype)

    def product():
        return torch._scaled_mm(x, x.t(), one, one, bias=bias, out_dtype=out)

    if dtype in BIASES[out]:
        assert product().float().unique().tolist() == [17 if out.itemsize > 1 else 16]
        return
    with pytest.raises((ValueError, RuntimeError), match=r"^Bias (is not supported|must be)"):
        product()


@pytest.mark.usefixtures("float8_products")
@given(rows=SIZES, inner=SIZES, columns=SIZES)
def test_float8_products_have_the_sizes_of_cublas(devices, rows, inner, columns):
    left = torch.ones(rows, inner, device=devices[0]).to(torch.float8_e4m3fn)
    right = torch.ones(columns, inner, device=devices[0]).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=devices[0])
    if inner % 16 == columns % 16 == 0:
        found = torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)
        assert found.unique().tolist() == [inner]
        return
    with pytest.raises(RuntimeError, match="divisible by 16"):
        torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)


# How a matrix may lie in memory: what makes it of a contiguous one of twice the sizes.
LAYOUTS = {
    "rows": lambda whole, n, m: whole[:n, :m].contiguous(),
    "columns": lambda whole, n, m: whole[:n, :m].t().contiguous().t(),
    "rows with gaps": lambda whole, n, m: whole[:n, :m],
    "columns with gaps": lambda whole, n, m: whole[:m, :n].t(),
    "gaps alone": lambda whole, n, m: whole[: 2 * n : 2, : 2 * m : 2],
    "gaps, transposed": lambda whole, n, m: whole[: 2 * m : 2, : 2 * n : 2].t(),
}


@pytest.mark.usefixtures("float8_products")
@pytest.mark.parametrize("second", LAYOUTS)
@given(
    first=st.sampled_from(sorted(LAYOUTS)),
    sizes=st.tuples(*[st.sampled_from([16, 32])] * 3),
)
def test_products_of_float8_are_of_rows_by_columns(devices, first, second, sizes):
    whole = torch.ones(64, 64, device=devices[0]).to(torch.float8_e4m3fn)
    left = LAYOUTS[first](whole, *sizes[:2])
    right = LAYOUTS[second](whole, *sizes[1:])
    scale = torch.ones((), device=devices[0])
    if "columns" not in first and "columns" in second:
        found = torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)
        assert found.unique().tolist() == [sizes[1]]
        return
    with pytest.raises(RuntimeError, match="Only multiplication of row-major and column-major"):
        torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)


ROOM = "CUDA Tensors cannot have more than 25 dimensions"
# What each says of 25 dimensions and of more, or "" where it takes them.
MANY = {
    "bernoulli": (lambda x, i: torch.bernoulli(x), ROOM, ""),
    "histc": (lambda x, i: x.histc(3), ROOM, ""),
    "index_add": (lambda x, i: x.index_add(1, i, x), ROOM, "tensor has too many (>25) dims"),
    "index_add along the first": (
        lambda x, i: x.index_add(0, i, x),
        "" if TorchVersion(torch.__version__) >= "2.14" else ROOM,
        "tensor has too many (>25) dims",
    ),
    "index_reduce": (
        lambda x, i: x.index_reduce(0, i, x, "amax"),
        ROOM,
        "tensor has too many (>25) dims",
    ),
    "index_add_": (
        lambda x, i: x.index_add_(1, i, x.clone()),
        ROOM,
        "tensor has too many (>25) dims",
    ),
    "index_reduce_": (
        lambda x, i: x.index_reduce_(0, i, x.clone(), "amax"),
        ROOM,
        "tensor has too many (>25) dims",
    ),
    "index_select": (
        lambda x, i: x.index_select(0, i),
        ROOM,
        "Tensor too large or too many (> 25) dimensions",
    ),
    "kthvalue": (lambda x, i: x.kthvalue(1), ROOM, "cannot operate on more than 25 dimensions"),
    "median": (lambda x, i: x.median(0), ROOM, "median() cannot operate on more than 25 dimen"),
    "median of all": (lambda x, i: x.median(), "", ""),
    "mode along one": (lambda x, i: x.mode(0), "", ""),
    "native_dropout": (lambda x, i: torch.native_dropout(x, 0.5, True), ROOM, ""),
    "nonzero": (
        lambda x, i: x.nonzero(),
        "",
        "nonzero is not supported for tensor with more than 25 dimensions",
    ),
    "poisson": (lambda x, i: torch.poisson(x), ROOM, ""),
    "sort": (lambda x, i: x.sort(), ROOM, "value tensor has too many dimensions"),
    "sort along one": (lambda x, i: x.sort(0), "", ""),
    "take": (lambda x, i: x.take(i), "", "tensor has too many (>25) dims"),
    "topk": (lambda x, i: x.topk(1), ROOM, "input tensor has too many dimensions"),
    "tril": (lambda x, i: x.tril(), ROOM, ""),
    "triu_": (lambda x, i: x.triu_(), ROOM, ""),
}


@pytest.mark.usefixtures("words_of_newer_cuda")
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", sorted(MANY))
@pytest.mark.parametrize("dims", [24, 25, 26])
def test_kernels_have_room_for_some_dimensions(devices, name, dims):
    call, *words = MANY[name]
    reported = "" if dims < 25 else words[dims - 25]
    x = torch.ones([1] * (dims - 1) + [2], device=devices[0])
    index = torch.zeros(1, dtype=torch.int64, device=devices[0])
    if not reported:
        call(x, index)
        return
    with pytest.raises(RuntimeError, match=f"^{re.escape(reported)}"):
        call(x, index)


# From how many rows and columns one can be made, by the 48 KiB that a block of threads shares:
# 65 weights of each of the 2 * n + 1 places (bicubic: 4 * n + 1) that are looked at.
MOST = {
    ("bilinear", torch.float16): 188,
    ("bilinear", torch.float32): 94,
    ("bilinear", torch.float64): 46,
    ("bicubic", torch.float16): 94,
    ("bicubic", torch.float32): 47,
    ("bicubic", torch.float64): 23,
}


@pytest.mark.parametrize(("mode", "dtype"), MOST, ids=str)
@given(more=st.integers(-1, 2), size=st.integers(1, 2), by_scale=st.booleans())
def test_antialiasing_has_room_for_the_weights_of_a_block(
    devices, mode, dtype, more, size, by_scale
):
    n = MOST[mode, dtype] + more
    x = torch.ones(1, 1, n * size, n * size, device=devices[0], dtype=dtype)
    options = {"scale_factor": (1 + 1e-9) / n} if by_scale else {"size": size}
    if more > 0:
        with pytest.raises(RuntimeError, match=r"shared memory required: \d+ vs 49152"):
            F.interpolate(x, mode=mode, antialias=True, **options)
        return
    assert F.interpolate(x, mode=mode, antialias=True, **options).shape == (1, 1, size, size)


def test_without_antialiasing_any_scale_is_taken(devices):
    x = torch.ones(1, 1, 500, 2, device=devices[0])
    assert F.interpolate(x, size=(1, 2), mode="bilinear").shape == (1, 1, 1, 2)
    corners = F.interpolate(x, size=(1, 2), mode="bilinear", antialias=True, align_corners=True)
    assert corners.shape == (1, 1, 1, 2)


@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    batch=st.sampled_from([(), (2,), (0,)]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64]),
)
def test_lu_without_pivots_finds_the_factors(devices, seed, rows, columns, batch, dtype):
    """There is only one such pair, and of small integers it is found without rounding."""
    random = torch.Generator().manual_seed(seed)
    rank = min(rows, columns)
    lower = torch.randint(-2, 3, (*batch, rows, rank), generator=random).to(dtype).tril(-1)
    lower.diagonal(dim1=-2, dim2=-1).fill_(1)
    upper = torch.randint(-2, 3, (*batch, rank, columns), generator=random).to(dtype).triu()
    signs = torch.randint(0, 2, (*batch, rank), generator=random) * 2 - 1
    upper.diagonal(dim1=-2, dim2=-1).copy_(signs)
    A = (lower @ upper).to(devices[0])
    P, L, U = torch.linalg.lu(A, pivot=False)
    assert P.numel() == 0
    assert torch.equal(L.cpu(), lower)
    assert torch.equal(U.cpu(), upper)
    both, pivots, info = torch.linalg.lu_factor_ex(A, pivot=False)
    assert both.device == pivots.device == devices[0]
    assert torch.equal(both[..., :rank, :].triu().cpu(), upper)
    assert pivots.tolist() == torch.arange(1, rank + 1).expand(*batch, rank).tolist()
    assert not info.any()
    assert both.stride() == torch.linalg.lu_factor_ex(A)[0].stride()


@given(size=st.integers(1, 4), zero=st.integers(0, 3))
def test_zero_pivot_is_reported(devices, size, zero):
    zero %= size
    diagonal = torch.ones(size)
    diagonal[zero] = 0
    A = torch.diag(diagonal).to(devices[0])
    assert torch.linalg.lu_factor_ex(A, pivot=False).info.item() == zero + 1
    with pytest.raises(RuntimeError, match=rf"U\[{zero + 1},{zero + 1}\] is zero"):
        torch.linalg.lu_factor(A, pivot=False)
    with pytest.raises(RuntimeError, match=r"torch\.linalg\.lu_factor_ex: U\["):
        torch.linalg.lu_factor_ex(A, pivot=False, check_errors=True)


@given(
    driver=st.sampled_from([None, "gels", "GELS", "gelsy", "gelsd", "gelss"]),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
)
def test_least_squares_have_one_driver(devices, driver, rows, columns):
    """Which tells no rank and no singular values. The matrix has a one in each row or column."""
    A, b = (x.to(devices[0]) for x in (torch.eye(rows, columns), torch.arange(1.0, rows + 1)))
    if driver not in (None, "gels", "GELS"):
        with pytest.raises(RuntimeError, match="`driver` other than `gels` is not supported"):
            torch.linalg.lstsq(A, b[:, None], driver=driver)
        return
    found = torch.linalg.lstsq(A, b[:, None], driver=driver)
    expected = torch.zeros(columns, 1)
    expected[: min(rows, columns), 0] = b[: min(rows, columns)].cpu()
    torch.testing.assert_close(found.solution.cpu(), expected)
    assert found.rank.numel() == found.singular_values.numel() == 0
    if rows > columns:
        torch.testing.assert_close(found.residuals.cpu(), b[columns:].square().sum()[None].cpu())


@given(driver=st.sampled_from([None, "gesvd", "gesvdj", "gesvda", "gesdd"]), size=st.integers(1, 4))
def test_singular_values_have_the_drivers_of_cusolver(devices, driver, size):
    A = torch.diag(torch.arange(1.0, size + 1)).to(devices[0])
    if driver == "gesdd":
        for call in (torch.linalg.svd, torch.linalg.svdvals):
            with pytest.raises(RuntimeError, match="unknown svd driver gesdd"):
                call(A, driver=driver)
        return
    expected = torch.arange(float(size), 0, -1)
    torch.testing.assert_close(torch.linalg.svdvals(A, driver=driver).cpu(), expected)
    U, S, Vh = torch.linalg.svd(A, driver=driver)
    torch.testing.assert_close(((U * S) @ Vh).cpu(), A.cpu())


def test_hermitian_systems_are_not_solved_by_their_ldl_factors(devices):
    A = torch.eye(3, dtype=torch.complex64, device=devices[0])
    factors = torch.linalg.ldl_factor(A)
    with pytest.raises(RuntimeError, match="complex tensors with hermitian=True flag are not"):
        torch.linalg.ldl_solve(*factors, A, hermitian=True)
    torch.testing.assert_close(torch.linalg.ldl_solve(*factors, A), A)
    real = torch.linalg.ldl_factor(A.real)
    torch.testing.assert_close(torch.linalg.ldl_solve(*real, A.real, hermitian=True), A.real)


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


# What is called with a tensor of no elements, which two of the dtypes have no kernel for.
EMPTY = {
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), 5),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), 4),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 2), 5),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), 4),
    "bernoulli_": (lambda x: x.bernoulli_(0.5), 1),
    "exponential_": (lambda x: x.exponential_(), 1),
    "geometric_": (lambda x: x.geometric_(0.5), 1),
    "log_normal_": (lambda x: x.log_normal_(), 1),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), 4),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), 5),
    "randn_like": (torch.randn_like, 1),
    "reflection_pad1d": (lambda x: F.pad(x, (1, 1), mode="reflect"), 3),
    "replication_pad2d": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), 4),
    "replication_pad3d": (lambda x: F.pad(x, (1,) * 6, mode="replicate"), 5),
    "rrelu": (lambda x: F.rrelu(x, training=True), 1),
    "rrelu_": (lambda x: F.rrelu_(x, training=True), 1),
}
DTYPES = [torch.bool, torch.int64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EMPTY)
def test_a_tensor_without_elements_is_not_refused(devices, name, dtype):
    call, dims = EMPTY[name]
    if name == "randn_like" and dtype.is_complex:
        pytest.skip("CUDA has a kernel for it")
    shape = [0, 3, 4, 4, 4][:dims]
    found = call(torch.zeros(shape, dtype=dtype, device=devices[-1]))
    floats = call(torch.zeros(shape, device=devices[-1]))
    assert (found.device, found.dtype) == (devices[-1], dtype)
    assert found.shape == floats.shape
    assert found.numel() == 0


@pytest.mark.parametrize("make", [torch.tril_indices, torch.triu_indices])
def test_a_triangle_without_elements_has_indices_of_any_dtype(devices, make):
    assert make(0, 3, dtype=torch.bool, device=devices[-1]).shape == (2, 0)
    with pytest.raises(NotImplementedError, match=f'"{make.__name__}'):
        make(2, 2, dtype=torch.bool, device=devices[-1])


# Of one element, which is copied.
ONE = {
    "logcumsumexp": (lambda x: x.logcumsumexp(0), ()),
    "median": (torch.Tensor.median, (1,)),
    "mode": (lambda x: x.mode()[0], (1,)),
    "nanmedian": (torch.Tensor.nanmedian, (1,)),
    "sort": (lambda x: x.sort()[0], (1,)),
}


@pytest.mark.parametrize("name", ONE)
def test_one_element_is_copied(devices, name):
    call, shape = ONE[name]
    dtype = torch.bool if name == "logcumsumexp" else torch.float8_e5m2
    x = torch.ones(shape, device=devices[-1]).to(dtype)
    found = call(x)
    assert (found.device, found.dtype) == (devices[-1], dtype)
    assert plain(found.float().flatten()) == [1.0]
    if name not in ("median", "nanmedian"):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            call(torch.ones(2, device=devices[-1]).to(dtype))


@pytest.mark.parametrize("count", [1, 3])
def test_complex_numbers_have_no_median(devices, count):
    x = torch.ones(count, dtype=torch.complex64, device=devices[-1])
    with pytest.raises(RuntimeError, match="Sort does not support complex dtypes"):
        x.median()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_gradient_of_no_pairs_is_zero_in_any_dtype(devices, dtype):
    x = torch.ones(1, 3, device=devices[-1], dtype=dtype)
    none = torch.empty(0, device=devices[-1], dtype=dtype)
    assert torch.ops.aten._pdist_backward(none, x, 2.0, none).tolist() == [[0.0] * 3]
