"""Automatic mixed precision: what `torch.autocast("simgpu")` casts, by CUDA's lists.

One kernel per operator of the lists here, under the dispatch key that tensors of the device
carry above autograd's; PyTorch visits it only while autocast is on, so autocast costs nothing
otherwise. A kernel casts its arguments with the key switched off, so that neither the casts nor
the operators within the operator are cast again, and hands over to autograd, which therefore sees
the casts. Everything follows aten/src/ATen/autocast_mode.{h,cpp}.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any

import torch

from simgpu._core.operators import tensors_in
from simgpu._ops.calls import overload, register_kernels, schema_of
from simgpu._ops.table import Keys, named, row
from simgpu._util.naming import DEVICE_TYPE

# The lists of CUDA's autocast policies: which operators are cast to which dtype.
#
# They are those of aten/src/ATen/autocast_mode.h in PyTorch, and cuDNN's convolutions of
# aten/src/ATen/autocast_mode.cpp (its recurrent layers are in `rnn`). A test compares them
# with what the installed PyTorch registers for CUDA and with the header it ships, so an operator
# that moves from one list to another shows there; this is the file to change then. Those with names
# of dimensions are in older releases only, linalg_matrix_sqrth in newer ones.


class Policy(Enum):
    """How the operators of one list run under autocast.

    Tensors that autocast may not touch (other devices, float64, anything not floating) stay as
    they are under every policy.
    """

    LOWER_PRECISION = "arguments are cast to autocast's dtype"
    FLOAT32 = "arguments are cast to float32"
    FLOAT32_DTYPE = "the operator is asked for a float32 result, unless the caller chose a dtype"
    FLOAT32_OVERLOAD = "as FLOAT32_DTYPE, where only another overload takes a dtype"
    WIDEST = "arguments are cast to float32 if one of them is, else to autocast's dtype"
    BANNED = "raises RuntimeError"


_LOWER_PRECISION = """
    _convolution _convolution.deprecated convolution conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    cudnn_convolution cudnn_convolution_transpose
    mm mv matmul bmm addmm addmv addr addbmm baddbmm
    linear einsum chain_matmul linalg_multi_dot linalg_vecdot prelu
    lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell
    scaled_dot_product_attention _scaled_dot_product_flash_attention
"""

_FLOAT32 = """
    acos asin cosh sinh tan erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt softplus
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar
    layer_norm native_layer_norm rms_norm group_norm
    frobenius_norm.dim nuclear_norm nuclear_norm.dim renorm logsumexp
    cosine_similarity dist pdist cdist
    nll_loss nll_loss2d poisson_nll_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    cosine_embedding_loss hinge_embedding_loss margin_ranking_loss soft_margin_loss
    multi_margin_loss multilabel_margin_loss triplet_margin_loss binary_cross_entropy_with_logits
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    linalg_matrix_sqrth
"""

_FLOAT32_DTYPE = """
    sum sum.dim_IntList prod prod.dim_int cumsum cumprod softmax.int log_softmax.int
    linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord
    sum.dim_DimnameList prod.dim_Dimname cumsum.dimname cumprod.dimname
    softmax.Dimname log_softmax.Dimname
"""

_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot tensordot grid_sampler index_put scatter_add
"""

# The overload that takes a dtype, after the same arguments.
OVERLOAD_WITH_DTYPE = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
    "norm.names_ScalarOpt_dim": "norm.names_ScalarOpt_dim_dtype",
}

# Worded as PyTorch words it (aten/src/ATen/autocast_mode.cpp, binary_cross_entropy_banned).
BANNED_MESSAGES = {
    "binary_cross_entropy": (
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using "
        "torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    )
}

for _names, _policy in (
    (_LOWER_PRECISION.split(), Policy.LOWER_PRECISION),
    (_FLOAT32.split(), Policy.FLOAT32),
    (_FLOAT32_DTYPE.split(), Policy.FLOAT32_DTYPE),
    (OVERLOAD_WITH_DTYPE, Policy.FLOAT32_OVERLOAD),
    (_WIDEST.split(), Policy.WIDEST),
    (BANNED_MESSAGES, Policy.BANNED),
):
    row(*_names, autocast=_policy)
POLICIES: dict[str, Policy] = named("autocast")

Tensor = torch.Tensor
_KEY = "AutocastPrivateUse1"
_AUTOCAST = torch._C._dispatch_key_parse(_KEY)
_AUTOCAST_ONLY = torch._C.DispatchKeySet(_AUTOCAST)
_BELOW_AUTOCAST = torch._C._dispatch_keyset_full_after(_AUTOCAST)
_without_autocast = torch._C._ExcludeDispatchKeyGuard

# Called with the dispatch keys and an operator's arguments; PyTorch leaves out trailing defaults.
_Kernel = Callable[..., Any]


class _PerThread(threading.local):
    """The casts of parameters that are kept until the thread leaves its outermost region.

    By the id of the parameter: the parameter itself, so that no other object can get its id
    meanwhile, and the cast, whose history holds the parameter anyway. CUDA keeps one such table
    for all threads, which whichever thread leaves first empties for the others; with a table for
    each, the number of casts that a thread makes does not depend on timing.
    """

    def __init__(self) -> None:
        self.casts: dict[int, tuple[Tensor, Tensor]] = {}


_per_thread = _PerThread()


def _eligible(tensor: Tensor) -> bool:
    """Whether autocast may cast `tensor` at all."""
    is_narrow = tensor.dtype.is_floating_point and tensor.dtype is not torch.float64
    return is_narrow and tensor.device.type == DEVICE_TYPE


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype is dtype or not _eligible(tensor):
        return tensor
    if (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype is torch.float32
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    ):
        return _cast_of_parameter(tensor, dtype)
    return tensor.to(dtype)


def _cast_of_parameter(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    casts = _per_thread.casts
    known = casts.get(id(parameter))
    if known is not None:
        # Even where an inner region asks for another dtype: so it is on CUDA.
        return known[1]
    # With its history even under `no_grad`: the next use of the parameter may need a gradient.
    with torch.enable_grad():
        cast = parameter.to(dtype)
    casts[id(parameter)] = parameter, cast
    return cast


def _cast_all(values: Iterable[Any], dtype: torch.dtype) -> list[Any]:
    """Arguments of an operator, with tensors and lists of tensors cast to `dtype`."""
    result: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            result.append(_cast(value, dtype))
        elif isinstance(value, (list, tuple)):
            result.append([_cast(v, dtype) if isinstance(v, Tensor) else v for v in value])
        else:
            result.append(value)
    return result


def _widest(values: Iterable[Any], lower: torch.dtype) -> torch.dtype:
    """float32 if a tensor among the arguments has it, else `lower`, autocast's dtype."""
    widest = lower
    for tensor in filter(_eligible, tensors_in(*values)):
        if torch.float32 in (widest, tensor.dtype):
            widest = torch.float32
        elif tensor.dtype is not lower:
            raise RuntimeError(
                f"Unexpected floating ScalarType in at::autocast::prioritize: {tensor.dtype} "
                f"under autocast to {lower}; cast the tensor to {lower} or torch.float32"
            )
    return widest


def _casting_kernel(
    op: torch._ops.OpOverload, choose: Callable[[tuple[Any, ...]], torch.dtype]
) -> _Kernel:
    """Run `op` on its arguments cast to the dtype that `choose` finds for them."""
    run: _Kernel = op._handle.redispatch_boxed

    def kernel(keys: Keys, *args: Any, **kwargs: Any) -> Any:
        with _without_autocast(_AUTOCAST_ONLY):
            # Tensors are never among the keyword arguments of these operators.
            cast = _cast_all(args, choose(args))
            return run(keys & _BELOW_AUTOCAST, *cast, **kwargs)

    return kernel


def _dtype_kernel(op: torch._ops.OpOverload) -> _Kernel:
    """Ask `op` for a float32 result, unless the caller asks for another."""
    run: _Kernel = op._handle.redispatch_boxed
    position = schema_of(op).names.index("dtype")

    def kernel(keys: Keys, *args: Any, **kwargs: Any) -> Any:
        with _without_autocast(_AUTOCAST_ONLY):
            # PyTorch leaves a dtype out that is None.
            if len(args) <= position and "dtype" not in kwargs and _eligible(args[0]):
                kwargs["dtype"] = torch.float32
            return run(keys & _BELOW_AUTOCAST, *args, **kwargs)

    return kernel


def _overload_kernel(op: torch._ops.OpOverload, with_dtype: torch._ops.OpOverload) -> _Kernel:
    """Run `with_dtype` in place of `op`: for a float32 result, or one of the argument's dtype."""
    run: _Kernel = with_dtype._handle.redispatch_boxed
    arguments = op._schema.arguments

    def kernel(keys: Keys, *args: Any, **kwargs: Any) -> Any:
        # The dtype comes last, so arguments that were left out as defaults are filled in.
        rest = [kwargs.pop(a.name, a.default_value) for a in arguments[len(args) :]]
        with _without_autocast(_AUTOCAST_ONLY):
            dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
            return run(keys & _BELOW_AUTOCAST, *args, *rest, dtype=dtype)

    return kernel


def _kernel(name: str, policy: Policy) -> _Kernel:
    if policy is Policy.BANNED:

        def banned(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(BANNED_MESSAGES[name])

        return banned
    op = overload(name)
    if policy is Policy.FLOAT32_OVERLOAD:
        return _overload_kernel(op, overload(OVERLOAD_WITH_DTYPE[name]))
    if policy is Policy.FLOAT32_DTYPE:
        return _dtype_kernel(op)
    if policy is Policy.FLOAT32:
        return _casting_kernel(op, lambda _: torch.float32)
    widest = _widest if policy is Policy.WIDEST else lambda _, lower: lower
    return _casting_kernel(op, lambda args: widest(args, torch.get_autocast_dtype(DEVICE_TYPE)))


def as_half(arguments: Iterable[Any]) -> list[Any]:
    """Arguments in float16 where autocast casts them at all, whatever its dtype."""
    return _cast_all(arguments, torch.float16)


def switched_off() -> AbstractContextManager[None]:
    """A region in which operators do not see that autocast is on: their arguments are cast."""
    region: AbstractContextManager[None] = _without_autocast(_AUTOCAST_ONLY)
    return region


def clear_cache() -> None:
    """Forget the casts of parameters that the calling thread keeps."""
    _per_thread.casts.clear()


def install() -> list[torch.library.Library]:
    """Register the kernels; the registrations last as long as the returned libraries.

    An operator that the installed PyTorch does not cast on CUDA is not cast here either.
    """
    anything = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    anything.fallback(torch.library.fallthrough_kernel, _KEY)  # type: ignore[no-untyped-call]
    cudas = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    kernels = (
        (name, _kernel(name, policy))
        for name, policy in POLICIES.items()
        if f"aten::{name}" in cudas
    )
    library = register_kernels(_KEY, kernels, with_keyset=True)
    return [anything, library]


# Autocast within a script: the two operators that TorchScript puts before what it casts.
#
# `with torch.autocast("cuda")` in a scripted function is known when it is compiled. PyTorch's own
# code for the two asks whether a tensor is on CUDA; a simulated device does what CUDA does.

_LOWER = (torch.float16, torch.bfloat16)


def to_reduced_precision(_: Keys, tensor: Tensor, *args: Any) -> Tensor:
    """`aten::_autocast_to_reduced_precision`: float32 becomes the dtype that was asked for."""
    cuda_enabled, _cpu_enabled, cuda_dtype, *_others = args
    return tensor.to(cuda_dtype) if cuda_enabled and tensor.dtype is torch.float32 else tensor


def to_full_precision(_: Keys, tensor: Tensor, cuda_enabled: bool, *others: Any) -> Tensor:
    """`aten::_autocast_to_full_precision`: halves become float32."""
    return tensor.float() if cuda_enabled and tensor.dtype in _LOWER else tensor


row("_autocast_to_full_precision", above_autograd=to_full_precision)
row("_autocast_to_reduced_precision", above_autograd=to_reduced_precision)
