"""Dtypes for which the CPU has a kernel and CUDA has none: refused in the words of CUDA's kernel.

`torch.mm` of two integer tensors is the best known: it works on the CPU, and ends a program on a
GPU with '"addmm_cuda" not implemented for 'Long''. So does a tensor of float8 that is multiplied
without `_scaled_mm`. Each rule names the dtypes that CUDA's kernel is compiled for, and the error.
As on CUDA, wrong devices and shapes are told first, and where there is nothing to compute nothing
is refused. `wider_dtypes` has the opposite: dtypes that CUDA has and the CPU has not.

Source: the AT_DISPATCH macros in PyTorch's aten/src/ATen/native/cuda, and the dtypes of CUDA in its
operator database (torch.testing._internal.common_methods_invocations).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from simgpu._kernels.overloads import PythonKernel
from simgpu._naming import DEVICE_TYPE, visible_text
from simgpu._runtime.error_words import refused_dtype
from simgpu._runtime.meta_kernels import call_on_meta

Tensor = torch.Tensor

FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_AND_COMPLEX = FLOATING | {torch.complex64, torch.complex128}
_NO_HALF = frozenset({torch.float16, torch.bfloat16})
_FLOAT8 = frozenset(found for name, found in vars(torch).items() if name.startswith("float8_"))
_ALL = frozenset(found for found in vars(torch).values() if isinstance(found, torch.dtype))
_NO_COMPLEX_HALF = _ALL - {torch.complex32}
_NO_FLOAT8 = _ALL - _FLOAT8
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

    `copies_one`: of a tensor of one element, it only makes a copy, and has all dtypes.
    """

    dtypes: frozenset[torch.dtype]
    kernel: str
    copies_one: bool = False


_RULES: dict[str, _Rule] = {
    "_addmm_activation": _Rule(_AND_COMPLEX, "addmm_cuda"),
    "_upsample_bicubic2d_aa": _Rule(FLOATING, "upsample_bicubic2d_out_frame"),
    "_upsample_bilinear2d_aa": _Rule(FLOATING, "upsample_bilinear2d_out_frame"),
    "abs": _Rule(_NO_FLOAT8, "abs_cuda"),
    "addbmm": _Rule(_AND_COMPLEX, "addmm_cuda"),
    "addcmul": _Rule(_NO_COMPLEX_HALF, "addcmul_cuda"),
    "addmm": _Rule(_AND_COMPLEX, "addmm_cuda"),
    "addmv": _Rule(_AND_COMPLEX, "addmv_impl_cuda"),
    "all": _Rule(_NO_COMPLEX_HALF - _FLOAT8, "and_cuda", copies_one=True),
    "any": _Rule(_NO_COMPLEX_HALF - _FLOAT8, "or_cuda", copies_one=True),
    "avg_pool2d": _Rule(FLOATING, "avg_pool2d_out_cuda_frame"),
    "avg_pool3d": _Rule(FLOATING, "avg_pool3d_out_cuda"),
    "baddbmm": _Rule(_AND_COMPLEX, "baddbmm_cuda"),
    "bmm": _Rule(_AND_COMPLEX, "baddbmm_cuda"),
    "dist": _Rule(_NO_COMPLEX_HALF, "norm_cuda"),
    "dot": _Rule(_AND_COMPLEX, "dot"),
    "linalg_vector_norm": _Rule(_AND_COMPLEX, "norm_cuda"),
    "max_pool2d_with_indices": _Rule(FLOATING, "max_pool2d_with_indices_out_cuda_frame"),
    "max_pool3d_with_indices": _Rule(FLOATING, "max_pool3d_with_indices_out_frame"),
    "mm": _Rule(_AND_COMPLEX, "addmm_cuda"),
    "mul": _Rule(_NO_FLOAT8, "mul_cuda"),
    "mv": _Rule(_AND_COMPLEX, "addmv_impl_cuda"),
    "norm": _Rule(_NO_COMPLEX_HALF, "norm_cuda"),
    "upsample_bicubic2d": _Rule(FLOATING, "upsample_bicubic2d_out_frame"),
    "upsample_bilinear2d": _Rule(FLOATING, "upsample_bilinear2d_out_frame"),
    "vdot": _Rule(_AND_COMPLEX, "dot"),
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
    if self.dtype in _NO_HALF:
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
    if self.dtype is torch.float16:
        raise RuntimeError("HalfTensor is not supported")
    if self.dtype is torch.bfloat16:
        raise no_kernel("histc", self.dtype)


def _igamma(kernel: str, self: Tensor, other: Tensor, **_: Any) -> None:
    if (dtype := torch.result_type(self, other)) in _NO_HALF:
        raise no_kernel(kernel, dtype)


def _normalized(input: Tensor, weight: Tensor | None, bias: Tensor | None, **_: Any) -> None:
    """Parameters of float32 for halves, which kernels of the CPU take. Others the host refuses."""
    given = {parameter.dtype for parameter in (weight, bias) if parameter is not None}
    if input.dtype in _NO_HALF and given == {torch.float32}:
        raise RuntimeError(f"expected scalar type {name_of(input.dtype)} but found Float")


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


def _scatter_reduce(
    self: Tensor,
    reduce: str,
    *,
    kernel: str = "cuda_scatter_gather_base_kernel_func",
    **_: Any,
) -> None:
    no_order = self.is_complex() or self.dtype is torch.bool
    if no_order and reduce not in ("sum", "add"):
        raise no_kernel(kernel, self.dtype)


# What more than one dtype decides, or other words tell; called with the arguments by their names.
_SPECIAL: dict[str, Callable[..., None]] = {
    "_scaled_mm": _scaled_mm,
    "_scaled_mm_v2": _scaled_mm,
    "angle": _angle,
    "convolution": _convolution,
    "histc": _histc,
    "igamma": partial(_igamma, "igamma_cuda"),
    "igammac": partial(_igamma, "igammac_cuda"),
    "native_group_norm": _normalized,
    "native_layer_norm": _normalized,
    "scatter.reduce": _scatter_reduce,
    "scatter.value_reduce": partial(
        _scatter_reduce, kernel="cuda_scatter_fill_base_kernel_reduce_multiply"
    ),
    "scatter_reduce": _scatter_reduce,
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
    rule = _RULES.get(name)
    if rule is None:
        return kernel
    dtypes, its_kernel, copies_one = rule

    def run(*args: Any, **kwargs: Any) -> Any:
        # A number may come first: `torch.mul(2, x)` as an operator.
        dtype = kwargs.get("dtype") or getattr(args[0], "dtype", None) or args[1].dtype
        if dtype not in dtypes and _computes(op, args, kwargs, True, copies_one):
            raise no_kernel(its_kernel, dtype)
        return kernel(*args, **kwargs)

    return run


def _computes(
    op: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    one_dtype: bool = False,
    copies_one: bool = False,
) -> bool:
    """Whether devices and shapes (and dtypes) go together, and leave something to compute."""
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    if any(tensor.numel() == 0 for tensor in tensors) or (copies_one and args[0].numel() == 1):
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
