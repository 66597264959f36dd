"""Dtypes that only the CPU's kernels have are refused; those that only CUDA's have are computed.

`torch.mm` of two integer tensors is the best known: it works on the CPU, and ends a program on a
GPU with '"addmm_cuda" not implemented for 'Long''. So does a tensor of float8 that is multiplied
without `_scaled_mm`. Each rule names the dtypes that CUDA's kernel is compiled for, and the error.
As on CUDA, wrong devices and shapes are told first, and where there is nothing to compute nothing
is refused. The second part has the opposite: dtypes that CUDA has and the CPU has not.

Source: the AT_DISPATCH macros in PyTorch's aten/src/ATen/native/cuda, and the dtypes of CUDA in its
operator database (torch.testing._internal.common_methods_invocations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from simgpu._core.operators import call_on_meta, refused_dtype
from simgpu._ops import batch_norm, linalg
from simgpu._ops.calls import PythonKernel
from simgpu._util.naming import DEVICE_TYPE, visible_text

Tensor = torch.Tensor

FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_AND_COMPLEX = FLOATING | {torch.complex64, torch.complex128}
_NO_HALF = frozenset({torch.float16, torch.bfloat16})
_ALL_FLOAT8 = frozenset(found for name, found in vars(torch).items() if name.startswith("float8_"))
_ALL = frozenset(found for found in vars(torch).values() if isinstance(found, torch.dtype))
_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
_NO_COMPLEX_HALF = _ALL - {torch.complex32}
_NO_FLOAT8 = _ALL - _ALL_FLOAT8
_SINCE_2_14 = TorchVersion(torch.__version__) >= "2.14"
_NO_KERNEL = "\"{}\" not implemented for '{}'"
# The dtypes that tensor types have a name for in Python: torch.FloatTensor.
_WITH_TENSOR_TYPE = (
    *(torch.float16, torch.float32, torch.float64, torch.uint8),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)
# Names that C++ gives to dtypes, where they are not those of Python with a capital letter.
_NAMES = {
    torch.bfloat16: "BFloat16",
    torch.complex128: "ComplexDouble",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.int8: "Char",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.uint8: "Byte",
}


class _Rule(NamedTuple):
    """The dtypes that CUDA has for the tensors of a call, and the kernel that its error names.

    `copies_one`: of a tensor of one element, it only makes a copy, and has all dtypes. `of_first`:
    only the first tensor has the dtype, others have one of their own. `promotes`: the dtype is that
    of the two first arguments together.
    """

    dtypes: frozenset[torch.dtype]
    kernel: str
    copies_one: bool = False
    of_first: bool = False
    promotes: bool = False


_NO_UNSIGNED = _ALL - _UNSIGNED
# By operator, or by operator and overload.
_RULES: dict[str, _Rule] = {
    "_addmm_activation": _Rule(_AND_COMPLEX, "addmm_cuda"),
    "_upsample_bicubic2d_aa": _Rule(FLOATING, "upsample_bicubic2d_out_frame"),
    "_upsample_bilinear2d_aa": _Rule(FLOATING, "upsample_bilinear2d_out_frame"),
    "abs": _Rule(_NO_FLOAT8, "abs_cuda"),
    "addbmm": _Rule(_AND_COMPLEX, "addmm_cuda"),
    "addcmul": _Rule(_NO_COMPLEX_HALF, "addcmul_cuda"),
    "addmm": _Rule(_AND_COMPLEX, "addmm_cuda"),
    "addmv": _Rule(_AND_COMPLEX, "addmv_impl_cuda"),
    "all": _Rule(_NO_COMPLEX_HALF - _ALL_FLOAT8 - _UNSIGNED, "and_cuda", copies_one=True),
    "any": _Rule(_NO_COMPLEX_HALF - _ALL_FLOAT8 - _UNSIGNED, "or_cuda", copies_one=True),
    "avg_pool2d": _Rule(FLOATING, "avg_pool2d_out_cuda_frame"),
    "avg_pool3d": _Rule(FLOATING, "avg_pool3d_out_cuda"),
    "baddbmm": _Rule(_AND_COMPLEX, "baddbmm_cuda"),
    "bmm": _Rule(_AND_COMPLEX, "baddbmm_cuda"),
    **{
        f"bitwise_{name}": _Rule(_NO_UNSIGNED, f"bitwise_{name}_cuda")
        for name in ("and", "or", "xor")
    },
    "dot": _Rule(_AND_COMPLEX, "dot"),
    **dict.fromkeys(
        ("_embedding_bag", "_embedding_bag_forward_only"),
        _Rule(FLOATING, "embedding_bag_cuda", of_first=True),
    ),
    **{
        f"_foreach_{name}": _Rule(_NO_COMPLEX_HALF, f"foreach_{kernel}_cuda")
        for kernel, names in {
            "unary_op": (
                *("acos", "asin", "atan", "cos", "cosh", "exp", "log", "neg", "reciprocal"),
                *("rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
            ),
            "pointwise_op": ("addcdiv", "addcmul"),
            "tensor_lerp_scalar": ("lerp.Scalar",),
            "binary_op_list": ("add.List", "div.List", "mul.List", "sub.List"),
            "binary_op_scalar": ("add.Scalar", "div.Scalar", "mul.Scalar", "pow.Scalar"),
        }.items()
        for name in names
    },
    **dict.fromkeys(("index", "masked_select"), _Rule(_NO_UNSIGNED, "index_cuda", of_first=True)),
    **dict.fromkeys(
        ("index_add", "scatter_add"),
        _Rule(_NO_UNSIGNED, "cuda_scatter_gather_base_kernel_func", of_first=True),
    ),
    "isinf": _Rule(_NO_FLOAT8, "abs_cuda"),
    "linalg_vector_norm": _Rule(_AND_COMPLEX | {torch.complex32}, "norm_cuda"),
    "max_pool2d_with_indices": _Rule(FLOATING, "max_pool2d_with_indices_out_cuda_frame"),
    "max_pool3d_with_indices": _Rule(FLOATING, "max_pool3d_with_indices_out_frame"),
    "mm": _Rule(_AND_COMPLEX, "addmm_cuda"),
    "mul": _Rule(_NO_FLOAT8 - _UNSIGNED, "mul_cuda", promotes=True),
    "mv": _Rule(_AND_COMPLEX, "addmv_impl_cuda"),
    "roll": _Rule(_NO_FLOAT8 - _UNSIGNED, "roll_cuda"),
    "scatter.value": _Rule(_NO_UNSIGNED, "cuda_scatter_fill_base_kernel_func", of_first=True),
    "sort": _Rule(_NO_UNSIGNED, "sortKeyValueInplace", copies_one=True),
    "topk": _Rule(_NO_FLOAT8 - _UNSIGNED, "topk_out_cuda"),
    "upsample_bicubic2d": _Rule(FLOATING, "upsample_bicubic2d_out_frame"),
    "upsample_bilinear2d": _Rule(FLOATING, "upsample_bilinear2d_out_frame"),
}


def name_of(dtype: torch.dtype) -> str:
    """What PyTorch's errors call a dtype: "Long" for torch.int64."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.").capitalize()


def type_of(tensor: Tensor) -> str:
    """What C++ calls the type of a tensor, as errors that pass to Python have it.

    Python has a name such as torch.cuda.FloatTensor for dtypes of old only.
    """
    if tensor.dtype in _WITH_TENSOR_TYPE:
        return tensor.type()
    return f"{'CPU' if tensor.is_cpu else DEVICE_TYPE}{name_of(tensor.dtype)}Type"


def no_kernel(kernel: str, dtype: torch.dtype) -> NotImplementedError:
    """The error of a CUDA kernel that was not compiled for a dtype."""
    return NotImplementedError(_NO_KERNEL.format(kernel, name_of(dtype)))


def _angle(self: Tensor, **_: Any) -> None:
    if self.dtype in _NO_HALF and not _SINCE_2_14:
        raise no_kernel("angle_cuda", self.dtype)


def _convolution(input: Tensor, weight: Tensor, **_: Any) -> None:
    if input.dtype != weight.dtype:
        found = (visible_text(type_of(tensor)) for tensor in (input, weight))
        raise RuntimeError("Input type ({}) and weight type ({}) should be the same".format(*found))
    if input.dtype in (torch.int8, torch.uint8, torch.int32):
        raise RuntimeError("GET was unable to find an engine to execute this computation")
    if not input.is_floating_point():
        raise RuntimeError(
            f"getCudnnDataTypeFromScalarType() not supported for {name_of(input.dtype)}"
        )


def _histc(self: Tensor, **_: Any) -> None:
    if _SINCE_2_14:
        return
    if self.dtype is torch.float16:
        raise RuntimeError("HalfTensor is not supported")
    if self.dtype is torch.bfloat16:
        raise no_kernel("histc", self.dtype)


def _chances(self: Tensor, p: Tensor, **_: Any) -> None:
    if not p.is_floating_point() and self.numel():
        raise RuntimeError(
            f"expected probabilities tensor to have floating type, got {name_of(p.dtype)}"
        )


def _randperm(
    n: int, dtype: torch.dtype | None = None, out: Tensor | None = None, **_: Any
) -> None:
    dtype = dtype if out is None else out.dtype
    if dtype is torch.bfloat16 and n:
        raise no_kernel("randperm_out_cuda", dtype)


def _unscale(self: Sequence[Tensor], **_: Any) -> None:
    """What GradScaler.unscale_ calls: CUDA has no kernel for gradients of bfloat16."""
    for gradient in self:
        if gradient.dtype is torch.bfloat16 and gradient.numel():
            raise no_kernel("_amp_foreach_non_finite_check_and_unscale_cuda", gradient.dtype)


def _igamma(kernel: str, self: Tensor, other: Tensor, **_: Any) -> None:
    if (dtype := torch.result_type(self, other)) in _NO_HALF:
        raise no_kernel(kernel, dtype)


def _normalized(input: Tensor, weight: Tensor | None, bias: Tensor | None, **_: Any) -> None:
    """Parameters have the input's dtype, also beside halves, where the CPU takes others."""
    for parameter in (weight, bias):
        if parameter is not None and parameter.dtype != input.dtype:
            raise RuntimeError(
                f"expected scalar type {name_of(input.dtype)} but found {name_of(parameter.dtype)}"
            )


def _scaled_mm(
    self: Tensor,
    mat2: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> None:
    for matrix in (self, mat2):
        if matrix.dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):  # those of AMD
            raise RuntimeError(f"Cannot convert ScalarType {name_of(matrix.dtype)} to cudaDataType")
    if self.dtype is mat2.dtype is torch.float8_e5m2:
        raise RuntimeError("Multiplication of two Float8_e5m2 matrices is not supported")
    if bias is not None:
        _bias_of_scaled_mm(bias.dtype, out_dtype or self.dtype)


def _bias_of_scaled_mm(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    """What cuBLAS adds while it multiplies (ATen/native/cuda/ScaledBlas.cpp)."""
    if out_dtype is torch.float32:
        raise ValueError("Bias is not supported when out_dtype is set to Float32")
    if dtype not in _NO_HALF:
        raise ValueError(f"Bias must be BFloat16 or Half, but got {name_of(dtype)}")
    for wanted, name in ((torch.bfloat16, "BFloat16"), (torch.float16, "Float16")):
        if out_dtype is wanted is not dtype:
            raise ValueError(
                f"Bias must be {name} to compute {name_of(out_dtype)} output, but got "
                f"{name_of(dtype)}"
            )


def _vdot(self: Tensor, **_: Any) -> None:
    if self.dtype not in _AND_COMPLEX:
        raise no_kernel("vdot" if self.is_complex() else "dot", self.dtype)


def _index_reduce(self: Tensor, reduce: str, **_: Any) -> None:
    """Numbers with an order are reduced to all; `amax` and `amin` of others the host refuses."""
    if reduce in ("prod", "mean") and self.dtype not in FLOATING | _INTEGERS:
        raise no_kernel("index_reduce", self.dtype)


def _scatter_reduce(
    self: Tensor,
    reduce: str,
    *,
    kernel: str = "cuda_scatter_gather_base_kernel_func",
    **_: Any,
) -> None:
    no_order = self.is_complex() or self.dtype is torch.bool
    if (no_order and reduce not in ("sum", "add")) or self.dtype in _UNSIGNED:
        raise no_kernel(kernel, self.dtype)


# What more than one dtype decides, or other words tell; called with the arguments by their names.
_SPECIAL: dict[str, Callable[..., None]] = {
    "_amp_foreach_non_finite_check_and_unscale": _unscale,
    "_scaled_mm": _scaled_mm,
    "_scaled_mm_v2": _scaled_mm,
    "angle": _angle,
    "bernoulli.Tensor": _chances,
    "convolution": _convolution,
    "histc": _histc,
    "igamma": partial(_igamma, "igamma_cuda"),
    "igammac": partial(_igamma, "igammac_cuda"),
    "index_reduce": _index_reduce,
    "native_group_norm": _normalized,
    "native_layer_norm": _normalized,
    "randperm": _randperm,
    "scatter.reduce": _scatter_reduce,
    "scatter.value_reduce": partial(
        _scatter_reduce, kernel="cuda_scatter_fill_base_kernel_reduce_multiply"
    ),
    "scatter_reduce": _scatter_reduce,
    "vdot": _vdot,
}


def with_dtype_rule(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, behind the rule about its operator's dtypes; most have none."""
    name = op._schema.name.removeprefix("aten::").removesuffix("_")
    names = [argument.name for argument in op._schema.arguments]
    overload = op._schema.overload_name.removesuffix("_out")
    special = _SPECIAL.get(name) or _SPECIAL.get(f"{name}.{overload}")
    if special is not None:

        def run_specially(*args: Any, **kwargs: Any) -> Any:
            try:
                special(**dict(zip(names, args, strict=False)), **kwargs)
            except (RuntimeError, ValueError):
                if _computes(op, args, kwargs):
                    raise
            return kernel(*args, **kwargs)

        return run_specially
    rule = _RULES.get(name) or _RULES.get(f"{name}.{overload}")
    if rule is None:
        return kernel
    dtypes, its_kernel, copies_one, of_first, promotes = rule

    def run(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        dtype = kwargs.get("dtype")
        if dtype is None:
            dtype = first.dtype if isinstance(first, Tensor) else _dtype_of_others(args)
        if dtype in dtypes or dtype is None:
            return kernel(*args, **kwargs)
        if _computes(op, args, kwargs, not of_first, copies_one):
            dtype = torch.result_type(*args[:2]) if promotes else dtype
            if dtype not in dtypes:
                raise no_kernel(its_kernel, dtype)
        return kernel(*args, **kwargs)

    return run


def _dtype_of_others(args: Sequence[Any]) -> torch.dtype | None:
    """The dtype of a list's first tensor; of the second argument, where a number comes first."""
    first, *others = args
    if isinstance(first, (list, tuple)):
        return first[0].dtype if first else None
    return getattr(others[0], "dtype", None)  # `torch.mul(2, x)` as an operator


def _computes(
    op: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    one_dtype: bool = False,
    copies_one: bool = False,
) -> bool:
    """Whether devices and shapes (and dtypes) go together, and leave something to compute."""
    outputs = {a.name for a in op._schema.arguments if a.is_out}
    inputs = [value for name, value in kwargs.items() if name not in outputs]
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    if any(leaf.numel() == 0 for leaf in tree_leaves((args, inputs)) if isinstance(leaf, Tensor)):
        return False
    if copies_one and args[0].numel() == 1:
        return False
    if len({tensor.device for tensor in tensors}) > 1:
        return False
    if one_dtype and len({tensor.dtype for tensor in tensors}) > 1:
        return False
    try:
        call_on_meta(op, args, kwargs)
    except NotImplementedError:
        return True  # no meta kernel: nothing to ask
    except (RuntimeError, IndexError, ValueError) as error:
        return refused_dtype(error)  # otherwise the host's kernel tells
    return True


# Dtypes for which CUDA has a kernel and the CPU has none: computed in a wider one, and rounded.
#
# `avg_pool3d` and Fourier transforms of float16, `histc` of integers: what a GPU computes must not
# end a program here. A kernel of CUDA computes a narrow dtype in a wider one and rounds once, and
# so does the host code here. The other part has the opposite.

HostCode = Callable[..., Any]
Dtypes = Mapping[torch.dtype, torch.dtype]
_sum = torch.ops.aten.sum.dim_IntList._handle.redispatch_boxed

_HALF = {torch.float16: torch.float32}
_HALVES = {**_HALF, torch.bfloat16: torch.float32}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
# Integers of as many bits, for what is only moved.
_BITS = {
    **dict.fromkeys(_FLOAT8, torch.uint8),
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.complex32: torch.int32,
}
if hasattr(torch, "float8_e8m0fnu"):  # since 2.7
    _BITS[torch.float8_e8m0fnu] = torch.uint8
_COMPLEX = {torch.complex32: torch.complex64}
# Signed integers that hold them, but for the largest of 64 bits, which stay what is not zero.
_UNSIGNED_WIDER_DTYPES = dict.fromkeys((torch.uint16, torch.uint32, torch.uint64), torch.int64)
_INTEGERS_WIDER_DTYPES = dict.fromkeys(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64
)


def _without_trace(wider: dict[torch.dtype, torch.dtype]) -> dict[torch.dtype, torch.dtype]:
    """Those of which the host has no trace: older releases have none of halves."""
    found = {}
    for dtype, wide in wider.items():
        try:
            torch.trace(torch.zeros(1, 1, dtype=dtype, device="cpu"))
        except NotImplementedError:
            found[dtype] = wide
    return found


# Which dtype is computed in which, by the name of the operator.
_WIDER: dict[str, dict[torch.dtype, torch.dtype]] = {
    "_fft_c2c": _COMPLEX,
    "_fft_c2r": _COMPLEX,
    "_fft_r2c": _HALVES,
    "_sample_dirichlet": _HALVES,
    "_standard_gamma": _HALVES,
    "_standard_gamma_grad": _HALVES,
    "_upsample_bicubic2d_aa": _HALVES,
    "_upsample_bicubic2d_aa_backward": _HALVES,
    "_upsample_bilinear2d_aa": _HALVES,
    "_upsample_bilinear2d_aa_backward": _HALVES,
    "avg_pool3d": _HALVES,
    "avg_pool3d_backward": _HALVES,
    "histc": {**_INTEGERS_WIDER_DTYPES, **_HALVES},
    "multi_margin_loss": _HALVES,
    "multi_margin_loss_backward": _HALVES,
    "multilabel_margin_loss_backward": _HALVES,
    "multilabel_margin_loss_forward": _HALVES,
    "sparse_sampled_addmm": _HALVES,
    "trace": {**_COMPLEX, **_without_trace(_HALVES), torch.bool: torch.uint8},
}
# What becomes of the dtype of a result, where the arguments were of this one.
_BACK = {
    torch.float16: {torch.float32: torch.float16, torch.complex64: torch.complex32},
    torch.bfloat16: {torch.float32: torch.bfloat16},
    torch.complex32: {
        torch.float32: torch.float16,
        torch.float64: torch.float16,  # these are outputs of the caller
        torch.complex64: torch.complex32,
        torch.complex128: torch.complex32,
    },
    **{dtype: {wide: dtype} for dtype, wide in _INTEGERS_WIDER_DTYPES.items()},
    torch.bool: {},
}


class _Refused(NamedTuple):
    """What arguments become once the host's kernel has refused them, and results after it."""

    wider: Dtypes
    back: Dtypes


# Halves are among the arguments where a number or a tensor of no dimension makes them complex.
_COMPLEX_HALVES = _Refused({**_COMPLEX, **_HALF}, _BACK[torch.complex32])
_REFUSED: dict[str, _Refused] = {
    "abs": _Refused({torch.bool: torch.uint8}, {torch.uint8: torch.bool}),
    "count_nonzero": _Refused(
        {**_UNSIGNED_WIDER_DTYPES, **dict.fromkeys(_FLOAT8, torch.float32)}, {}
    ),
    **dict.fromkeys(
        (
            *("acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "dist"),
            *(
                "div",
                "equal",
                "exp",
                "lerp",
                "linalg_vector_norm",
                "log",
                "logaddexp",
                "nansum",
                "norm",
            ),
            *("pow", "prod", "rsqrt", "sigmoid"),
            *("sigmoid_backward", "sin", "sinh", "sqrt", "sum", "tan", "tanh", "tanh_backward"),
        ),
        _COMPLEX_HALVES,
    ),
}
# What only moves numbers.
_MOVED = ("flip", "gather", "gather.out", "scatter.src", "scatter.src_out")
# The same with one number, which CUDA takes for float8 only, and since a release.
_FILLED = ("scatter.value", "scatter.value_out") if torch.__version__ >= "2.15" else ()


def host_code(op: torch._ops.OpOverload) -> HostCode | None:
    """What computes `op` on the host, or None where PyTorch's own kernel has all dtypes."""
    stock: HostCode = op._handle.redispatch_boxed
    own = _HOST_CODE.get(op._schema.name)
    if own is not None:
        stock = partial(own, stock)
    return widened(op, stock) or (None if own is None else stock)


def widened(op: torch._ops.OpOverload, stock: HostCode) -> HostCode | None:
    """What calls `stock` with wider tensors where it has to, or None where it has all dtypes."""
    name = op._schema.name.removeprefix("aten::").removesuffix("_")
    written = [
        (position, a.name)
        for position, a in enumerate(op._schema.arguments)
        if a.alias_info and a.alias_info.is_write
    ]
    if name in _WIDER:
        return partial(_compute, stock, _WIDER[name], written)
    if name in _REFUSED:
        return _asking_first(stock, partial(_in_wider, stock, _REFUSED[name], written))
    overload = f"{name}.{op._schema.overload_name}".removesuffix(".")
    if overload in _MOVED:
        return _asking_first(stock, partial(_in_bits, stock))
    if overload in _FILLED:
        return _asking_first(stock, partial(_number_in_bits, stock))
    return None


def _compute(
    stock: HostCode,
    wider: Dtypes,
    written: Sequence[tuple[int, str]],
    keys: torch._C.DispatchKeySet,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call `stock` with wider tensors if its first argument is narrow, and round the results."""
    narrow = args[0].dtype
    if narrow not in wider:
        return stock(keys, *args, **kwargs)
    return _in_wider(stock, _Refused(wider, _BACK[narrow]), written, keys, args, kwargs)


def _asking_first(stock: HostCode, otherwise: HostCode) -> HostCode:
    """`stock`, and `otherwise` once it has refused: the first costs hardly anything."""

    def run(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(keys, *args, **kwargs)
        except NotImplementedError as error:
            refusal = error  # having written nothing
        return _once_refused(refusal, otherwise, keys, args, kwargs)

    return run


def _once_refused(refusal: NotImplementedError, otherwise: HostCode, *call: Any) -> Any:
    """What `otherwise` makes of a call, or the first refusal if that has no dtype for it either."""
    try:
        return otherwise(*call)
    except NotImplementedError:
        raise refusal from None


def _in_wider(
    stock: HostCode,
    dtypes: _Refused,
    written: Sequence[tuple[int, str]],
    keys: torch._C.DispatchKeySet,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `stock` with wider tensors and dtypes, and round its results or what it has written."""
    wider, back = dtypes

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(wider.get(leaf.dtype, leaf.dtype))
        return wider.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    # It is ours: torch-function modes of the user must not see how it computes.
    with torch._C.DisableTorchFunction():
        wide_args, wide_kwargs = tree_map(widen, (args, kwargs))
        results = stock(keys, *wide_args, **wide_kwargs)
        if not written:
            return tree_map_only(Tensor, lambda x: x.to(back.get(x.dtype, x.dtype)), results)
        outputs = []
        for position, name in written:
            by_name = name in kwargs
            output = kwargs[name] if by_name else args[position]
            wide = wide_kwargs[name] if by_name else wide_args[position]
            output.resize_(wide.shape).copy_(wide.to(back.get(wide.dtype, wide.dtype)))
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _in_bits(
    stock: HostCode,
    keys: torch._C.DispatchKeySet,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `stock` with integers of the same bits, where it only moves them.

    An output has got its shape from the kernel that refused.
    """
    narrow = args[0].dtype
    bits = _BITS.get(narrow, narrow)

    def as_bits(tensor: Tensor) -> Tensor:
        return tensor.view(bits) if tensor.dtype == narrow else tensor

    with torch._C.DisableTorchFunction():
        host_args, host_kwargs = tree_map_only(Tensor, as_bits, (args, kwargs))
        result = stock(keys, *host_args, **host_kwargs)
        return result.view(narrow)


def _number_in_bits(
    stock: HostCode,
    keys: torch._C.DispatchKeySet,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`scatter` of one number: `stock` with its bits, if the tensor is of float8."""
    *others, number = args
    if others[0].dtype not in _FLOAT8:
        return stock(keys, *args, **kwargs)  # which refuses
    with torch._C.DisableTorchFunction():
        bits = torch.tensor(number, device="cpu").to(others[0].dtype).view(torch.uint8).item()
    return _in_bits(stock, keys, (*others, bits), kwargs)


def _sum_of_numbers(
    stock: HostCode, keys: torch._C.DispatchKeySet, self: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """`nansum`, of complex numbers too."""
    if not self.is_complex():
        return stock(keys, self, *args, **kwargs)
    out = kwargs.pop("out", None)
    total = _sum(keys, self.masked_fill(self.isnan(), 0), *(args or (None,)), **kwargs)
    return total if out is None else out.resize_(total.shape).copy_(total)


def _identity(stock: HostCode, keys: torch._C.DispatchKeySet, *args: Any, **options: Any) -> Any:
    """`eye` of any dtype, which the numbers become when they are there."""
    try:
        return stock(keys, *args, **options)
    except NotImplementedError:
        if options.get("out") is not None:
            raise
    dtype = options.pop("dtype")
    return stock(keys, *args, **options, dtype=torch.int64).to(dtype)


def _unpooled(
    stock: HostCode, keys: torch._C.DispatchKeySet, self: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """`max_unpool2d`, `max_unpool3d`: numbers are moved, integers of 64 bits as they are."""
    if self.dtype not in _INTEGERS_WIDER_DTYPES or kwargs:
        return stock(keys, self, *args, **kwargs)
    with torch._C.DisableTorchFunction():
        if self.dtype is torch.int64:
            return stock(keys, self.view(torch.float64), *args).view(self.dtype)
        return stock(keys, self.to(torch.float64), *args).to(self.dtype)


def _median(
    stock: HostCode, keys: torch._C.DispatchKeySet, self: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """`median`, `nanmedian` of all elements, which CUDA sorts: of bools too."""
    if self.is_complex() and not (args or kwargs):
        raise RuntimeError(" Sort does not support complex dtypes on CPU")  # it says so of any
    if self.dtype is not torch.bool or args or kwargs:
        return stock(keys, self, *args, **kwargs)
    with torch._C.DisableTorchFunction():
        return stock(keys, self.to(torch.uint8)).to(torch.bool)


_HOST_CODE: dict[str, HostCode] = {
    "aten::eye": _identity,
    "aten::max_unpool2d": _unpooled,
    "aten::max_unpool3d": _unpooled,
    "aten::median": _median,
    "aten::nanmedian": _median,
    "aten::nansum": _sum_of_numbers,
    **batch_norm.HOST_CODE,
    **linalg.HOST_CODE,
}
