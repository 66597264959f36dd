"""Products of matrices and convolutions: kernels that only CUDA has, rows and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from simgpu._core.launch import Kernel
from simgpu._ops.calls import Arguments
from simgpu._ops.dtypes import (
    AND_COMPLEX,
    HALF_DTYPES,
    Only,
    check_cudnn_dtype,
    name_of,
    no_kernel,
    type_of,
)
from simgpu._ops.from_schema import Call, computed_by_name, functional_kernel, out_kernel
from simgpu._ops.rules import refuse
from simgpu._ops.table import HostCode, Keys, PythonKernel, row
from simgpu._util.naming import visible_text

Tensor = torch.Tensor


def _mm(stock: HostCode, keys: Keys, first: Tensor, second: Tensor, **kwargs: Any) -> Tensor:
    """A product of matrices, none of which is -0: cuBLAS adds products of these dtypes to 0.

    It does not in float64 or in batches, as the CPU where a sum has one product only.
    """
    result: Tensor = stock(keys, first, second, **kwargs)
    adds = first.shape[-1] == 1 and first.dtype != torch.float64
    return result.add_(0) if adds else result


row("mm", host=_mm)
row("addmm[_]", "addbmm[_]", "mm", "_addmm_activation", dtypes=Only(AND_COMPLEX, "addmm_cuda"))
row("addmv[_]", "mv", dtypes=Only(AND_COMPLEX, "addmv_impl_cuda"))
row("baddbmm[_]", "bmm", dtypes=Only(AND_COMPLEX, "baddbmm_cuda"))
row("dot", dtypes=Only(AND_COMPLEX, "dot"))


def _vdot(self: Tensor, **_: Any) -> None:
    if self.dtype not in AND_COMPLEX:
        raise no_kernel("vdot" if self.is_complex() else "dot", self.dtype)


def int8_product(arguments: dict[str, Any]) -> None:
    """Sizes and the dtype that cuBLAS has for eight bits (ATen/native/cuda/Blas.cpp, _int_mm)."""
    left, right = arguments["self"], arguments["mat2"]
    _ = left.size(0), right.size(1)  # of the output, which CUDA makes first
    for name, matrix in (("self", left), ("mat2", right)):
        if matrix.dim() != 2:
            raise RuntimeError(f"Expected {name} to be of dimension 2 but got {matrix.dim()}")
    if left.shape[0] <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {left.shape[0]}")
    for name, matrix in (("self", left), ("mat2", right)):
        size = matrix.shape[1]
        if size == 0 or size % 8:
            raise RuntimeError(
                f"{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {size}"
            )
        if left.shape[1] != right.shape[0]:
            raise RuntimeError(
                "self.size(1) needs to match mat2.size(0) but got "
                f"{left.shape[1]} and {right.shape[0]}"
            )
    for matrix in (left, right):
        if matrix.dtype is not torch.int8:
            raise RuntimeError(f"expected scalar type Char but found {name_of(matrix.dtype)}")


# AMD's dtypes, and that of scales.
_UNKNOWN_TO_CUBLAS = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)


def scaled_product(arguments: dict[str, Any]) -> None:
    """Sizes and layouts that cuBLAS has for float8 (ATen/native/cuda/ScaledBlas.cpp)."""
    left, right = arguments["self"], arguments["mat2"]
    if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        return  # the kernel says so
    (rows, inner), (_, columns) = left.shape, right.shape
    if inner % 16:
        raise RuntimeError(
            "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: "
            f"({rows}x{inner})."
        )
    if columns % 16:
        raise RuntimeError(f"mat2 shape ({inner}x{columns}) must be divisible by 16")
    if not rows * inner * columns:
        return
    one_scale = all(_first(arguments[name]).numel() == 1 for name in ("scale_a", "scale_b"))
    if one_scale and (_is_column_major(left) or not _is_column_major(right)):
        raise RuntimeError(
            "Only multiplication of row-major and column-major matrices is supported by cuBLASLt"
        )
    for matrix in (right, left):
        if matrix.dtype in _UNKNOWN_TO_CUBLAS:
            raise RuntimeError(f"Cannot convert ScalarType {name_of(matrix.dtype)} to cudaDataType")


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def _is_column_major(matrix: Tensor) -> bool:
    """Whether cuBLAS reads it by columns, with gaps or without; it reads copies of others."""
    (rows, _), (down, along) = matrix.shape, matrix.stride()
    return not matrix.is_contiguous() and down == 1 and along >= rows


def _saturated(
    stock: HostCode,
    keys: Keys,
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *rest: Any,
    **outputs: Tensor,
) -> Tensor:
    """A product of float8, whose largest number cuBLAS writes for results that are larger."""
    call = (self, mat2, scale_a, scale_b, bias, scale_result)
    dtype = outputs["out"].dtype if outputs else out_dtype or self.dtype
    if dtype.itemsize > 1 or scale_result is not None:
        return stock(keys, *call, out_dtype, *rest, **outputs)  # type: ignore[no-any-return]
    most = torch.finfo(dtype).max
    wide = {name: torch.empty_like(out, dtype=torch.float32) for name, out in outputs.items()}
    result = stock(keys, *call, torch.float32, *rest, **wide).clamp_(-most, most).to(dtype)
    return outputs["out"].copy_(result) if outputs else result


def _scaled_mm(
    self: Tensor,
    mat2: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> None:
    if self.dtype is mat2.dtype is torch.float8_e5m2:
        raise ValueError("Multiplication of two Float8_e5m2 matrices is not supported")
    if bias is None:
        return
    # What cuBLAS adds while it multiplies (ATen/native/cuda/ScaledBlas.cpp).
    out_dtype = out_dtype or self.dtype
    if out_dtype is torch.float32:
        raise ValueError("Bias is not supported when out_dtype is set to Float32")
    if bias.dtype not in HALF_DTYPES:
        raise ValueError(f"Bias must be BFloat16 or Half, but got {name_of(bias.dtype)}")
    for wanted, name in ((torch.bfloat16, "BFloat16"), (torch.float16, "Float16")):
        if out_dtype is wanted is not bias.dtype:
            raise ValueError(
                f"Bias must be {name} to compute {name_of(out_dtype)} output, but got "
                f"{name_of(bias.dtype)}"
            )


_INT8_VECTOR = 16  # elements that the kernel loads at once, from addresses that are multiples


def int8_weights(arguments: dict[str, Any]) -> None:
    """Rows of whole vectors at aligned addresses, in bfloat16; the kernel looks at neither."""
    input, weights = arguments["self"], arguments["mat2"]
    if input.dtype != torch.bfloat16 or input.dim() != 2:
        return
    whole = input.shape[1] % _INT8_VECTOR == 0
    if not whole or any(x.data_ptr() % (_INT8_VECTOR * x.itemsize) for x in (input, weights)):
        raise RuntimeError(
            f"_weight_int8pack_mm in bfloat16 expects rows of a multiple of {_INT8_VECTOR} "
            "elements that begin at one in memory, got an input of shape "
            f"{tuple(input.shape)} at storage offset {input.storage_offset()} and weights of shape "
            f"{tuple(weights.shape)} at {weights.storage_offset()}: pad the rows with zeros, or "
            "take float32"
        )


row("vdot", dtypes=_vdot, wrong_on_meta=True)
row("_int_mm", checks=(int8_product,))
row("_scaled_mm", host=_saturated, checks=(scaled_product,), dtypes=_scaled_mm)
row("_scaled_mm_v2", checks=(scaled_product,), dtypes=_scaled_mm)
row("_weight_int8pack_mm", checks=(int8_weights,))


# `mm`, `bmm`, `addmm` and `baddbmm` with `out_dtype=`, which PyTorch has only for GPUs.
#
# The product of halves is added up in float32 on a GPU, and this overload returns it as such: its
# kernel is that of `mm` of the same numbers in float32, whose products of halves are exact.
#
# Source: the checks and their messages are those of PyTorch's aten/src/ATen/native/cuda/Blas.cpp.

_UNLIKE = "{} and {} must have the same dtype"
_UNLIKE_SHOWN = _UNLIKE + ", but got {} and {}"


class _Product(NamedTuple):
    """One operator, what C++ calls its factors, its error for unlike ones, and its CUDA kernel."""

    function: Callable[..., Tensor]
    factors: tuple[str, str]
    unlike: str
    kernel: str

    def check(self, args: Sequence[Any], out: Tensor | None) -> None:
        """Raise for dtypes that CUDA's kernel does not take together."""
        *added, first, second, out_dtype = args
        if first.dtype != second.dtype:
            unlike = name_of(first.dtype), name_of(second.dtype)
            raise RuntimeError(self.unlike.format(*self.factors, *unlike))
        if out is not None and out.dtype != out_dtype:
            raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
        wider = out_dtype == torch.float32 and first.dtype in (torch.float16, torch.bfloat16)
        if out_dtype != first.dtype and not wider:
            raise RuntimeError(
                "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"
            )
        if added and added[0].dtype not in (out_dtype, first.dtype):
            raise RuntimeError(f"self dtype must match either out_dtype or {self.factors[0]} dtype")
        if first.dtype not in AND_COMPLEX:
            raise no_kernel(self.kernel, first.dtype)

    def run(self, _: Keys, *args: Any, out: Tensor | None = None, **scales: Any) -> Tensor:
        # It is ours: torch-function modes of the user must not see how it computes.
        with torch._C.DisableTorchFunction():
            self.check(args, out)
            *tensors, out_dtype = args
            return self.function(*(each.to(out_dtype) for each in tensors), out=out, **scales)


_PRODUCTS = {
    "mm": _Product(torch.mm, ("mat1", "mat2"), "input dtypes must be the same", "addmm_cuda"),
    "bmm": _Product(torch.bmm, ("batch1", "batch2"), _UNLIKE, "baddbmm_cuda"),
    "addmm": _Product(torch.addmm, ("mat1", "mat2"), _UNLIKE_SHOWN, "addmm_cuda"),
    "baddbmm": _Product(torch.baddbmm, ("batch1", "batch2"), _UNLIKE, "baddbmm_cuda"),
}


def _product_kernel(with_dtype: torch._ops.OpOverload) -> PythonKernel:
    product = _PRODUCTS[with_dtype._schema.name.removeprefix("aten::")]
    make = out_kernel if with_dtype._overloadname == "dtype_out" else functional_kernel
    return make(Kernel(with_dtype, product.run), Arguments(with_dtype))


for _name in _PRODUCTS:  # `check` is the rule of their dtypes: a meta kernel may not take out_dtype
    row(f"{_name}.dtype[_out]", make=_product_kernel, dtypes=None)


# Convolutions
#
# PyTorch has the kernels of cuDNN where it is built with CUDA. They compute what
# `torch.convolution` does; `benchmark`, `deterministic` and `allow_tf32` choose among algorithms.


def _cudnn_convolution(call: Call) -> Tensor:
    """A convolution without what follows it; transposed, if it has an output_padding."""
    after = call.output_padding
    options = call.stride, call.padding, call.dilation, after is not None
    zeros = [0] * len(call.stride)
    weight, bias = call.weight, call.bias
    return torch.convolution(call.self, weight, bias, *options, after or zeros, call.groups)


def _cudnn_convolution_relu(call: Call) -> Tensor:
    """The positive part of a convolution, to which `alpha` (1 if None) times `z` may be added."""
    y = _cudnn_convolution(call)
    if call.z is not None:
        y.add_(call.z, alpha=1 if call.alpha is None else call.alpha)
    return y.relu_()


def _convolution(input: Tensor, weight: Tensor, **_: Any) -> None:
    if input.dtype != weight.dtype:
        found = (visible_text(type_of(tensor)) for tensor in (input, weight))
        raise RuntimeError("Input type ({}) and weight type ({}) should be the same".format(*found))
    check_cudnn_dtype(input.dtype, "GET was unable to find an engine to execute this computation")


def slow_conv_backward(arguments: dict[str, Any]) -> None:
    """As many images in the gradient as in the input."""
    grad, input = arguments["grad_output"], arguments["self"]
    if grad.dim() != input.dim() or grad.shape[:1] != input.shape[:1]:
        refuse("_slow_conv2d_backward", arguments, "grad_output", "self")


row("cudnn_convolution[_transpose]", make=computed_by_name(_cudnn_convolution))
row("cudnn_convolution[_add]_relu", make=computed_by_name(_cudnn_convolution_relu))
# PyTorch's tracer leaves out `convolution` and waits for `_convolution`, which its composite calls
# (DONT_RECORD_TRACE, tools/autograd/gen_trace_type.py); the others of that list are composed for
# any device. A kernel for the whole would give the trace a result that comes from nowhere.
row("convolution", dtypes=_convolution)
row("convolution.default", named_as="cudnn_convolution", recorded_in_parts=True)
row("_slow_conv2d_backward", checks=(slow_conv_backward,))
