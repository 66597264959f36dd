"""Reword the errors of CPU kernels: CUDA's name of the kernel in place of the CPU's.

A kernel that refuses a dtype names itself: CUDA says '"pow_cuda" not implemented for 'Bool'', and
the CPU '"pow"'. For most names it is enough to replace "cpu" by "cuda". The tables here have the
others.

Source: the calls of PyTorch's operator database with each dtype, by its own code for CUDA
(tests/assurance/emulated_cuda).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_Args = Sequence[Any]
_Name = str | Callable[[_Args, Mapping[str, Any]], str]
_OF_CPU = re.compile(r"(\w*?)(?:_vml)?_cpu(\w*)")
_NAMED = re.compile(r'"([\w<>]+)"(?= not implemented for)')


def _batch_norm(args: _Args, _: Mapping[str, Any]) -> str:
    if next((arg for arg in args if isinstance(arg, bool)), True):  # whether it trains
        return "batch_norm_stats_cuda"
    return "batchnorm_forward" if args[0].dim() == 2 else "batch_norm_invert_std_cuda"


def _lu(args: _Args, _: Mapping[str, Any]) -> str:
    *batch, rows, columns = args[0].shape
    if rows != columns:
        return "lu_factor_magma_batched"
    count = math.prod(batch)
    if count == 1:
        return "lu_factor_cusolver"
    small = rows <= 16 or (rows <= 128 and count <= 16)
    return "lu_factor_cublas" if small else "lu_factor_magma_batched"


def _nll_loss(args: _Args, _: Mapping[str, Any]) -> str:
    dims = args[0].dim()
    if dims == 2 and args[3] == 0:  # no reduction
        return "nll_loss_forward_no_reduce_cuda_kernel"
    return f"nll_loss_forward_reduce_cuda_kernel_{dims}d"


def _nll_loss2d(args: _Args, _: Mapping[str, Any]) -> str:
    return f"nll_loss2d_forward_{'' if args[3] else 'no_reduce_'}kernel"


def _aminmax(_: _Args, kwargs: Mapping[str, Any]) -> str:
    return "aminmax_all_cuda" if kwargs.get("dim") is None else "aminmax_cuda"


# From the name of the CPU's kernel, with "cuda" in place of "cpu".
_NAMES: dict[str, _Name] = {
    **{
        name: f"{name}_cuda"
        for name in (
            *("adaptive_avg_pool2d", "adaptive_max_pool2d", "cdist", "cross", "digamma", "exp2"),
            *("fused_adam_kernel", "fused_sgd_kernel", "max_all", "min_all", "pdist", "polygamma"),
            *("pow", "replication_pad1d", "replication_pad2d", "replication_pad3d", "trigamma"),
            *("tril_indices", "triu_indices"),
        )
    },
    **{
        f"{name}_out_cuda": f"{name}_cuda" for name in ("cumprod", "cumsum", "logcumsumexp", "prod")
    },
    **{f"{name}_cuda_out": f"{name}_cuda" for name in ("addcdiv", "addcmul")},
    **{
        f"{log}softmax_{last}kernel_impl": "host_softmax"
        for log in ("", "log_")
        for last in ("", "lastdim_")
    },
    **dict.fromkeys(("ge_cuda", "gt_cuda", "le_cuda", "lt_cuda"), "compare_cuda"),
    **dict.fromkeys(("clamp_max_scalar_cuda", "clamp_min_scalar_cuda"), "clamp_scalar_cuda"),
    **dict.fromkeys(("lerp_kernel_scalar", "lerp_kernel_tensor"), "lerp_cuda"),
    **dict.fromkeys(("cholesky_inverse_out_cuda", "cholesky_solve_cuda"), "cholesky_cuda_potrs"),
    **dict.fromkeys(("median_out", "median_cuda"), "median_out_impl"),
    **dict.fromkeys(("tril", "triu"), "triu_tril_cuda_template"),
    **{
        f"scatter_gather_tensor_cuda{reduce}": "cuda_scatter_gather_base_kernel_func"
        for reduce in ("", "_reduce_amax", "_reduce_amin", "_reduce_mean", "_reduce_prod")
    },
    "GeluKernelImpl": "GeluCUDAKernelImpl",
    "_segment_reduce_cuda": "segment_reduce_cuda",
    "add_stub": "ufunc_add_CUDA",
    "avg_pool3d_out_frame": "avg_pool3d_out_cuda",
    "batch_norm": _batch_norm,
    "binary_cross_entropy": "binary_cross_entropy_out_cuda",
    "bmm": "baddbmm_cuda",
    "cholesky_cuda": "cholesky_cusolver",
    "dirichlet": "gamma_cuda",
    "fake_quantize_tensor_cachemask_kernel_type_handling": (
        "fake_quantize_tensor_cachemask_kernel_types"
    ),
    "fractional_max_pool2d_out_frame": "fractional_max_pool2d_out_cuda_frame",
    "fused_adagrad_kernel": "fused_adam_kernel_cuda",
    "grid_sampler3d_cuda": "grid_sampler_3d_cuda",
    "grid_sampler_2d_cuda_kernel_impl": "grid_sampler_2d_cuda",
    "index_func_": "index_reduce",
    "index_reduce_func_exclude_input_init": "index_reduce_func_cuda_exclude_input_init",
    "ldl_factor_kernel_cuda": "ldl_factor_looped_cusolver",
    "linalg_svd_cuda": "svd_cuda_gesvdjBatched",
    "log_sigmoid_cuda": "log_sigmoid_forward_cuda",
    "lu_cuda": _lu,
    "masked_fill": "masked_fill_",
    "masked_scatter": "masked_scatter_",
    "max_unpool2d": "max_unpooling2d_forward_kernel",
    "max_unpool3d": "max_unpooling3d_forward_kernel",
    "maximum_cuda": "max_elementwise_cuda",
    "minimum_cuda": "min_elementwise_cuda",
    "mode_cuda": "cuda_mode",
    "mul_cuda_reduced_float": "mul_cuda",
    "multi_margin_loss_cuda_kernel": "multi_margin_loss_cuda",
    "multilabel_margin_loss_forward_out_frame": "multilabel_margin_loss_forward_kernel",
    "nll_loss2d_forward_out_frame": _nll_loss2d,
    "nll_loss_out_frame": _nll_loss,
    "ormqr_cuda": "orgmr_cuda",
    "randperm": "arange_cuda",
    "reflection_pad1d": "reflection_pad1d_out",
    "reflection_pad2d": "reflection_pad2d_out_template",
    "reflection_pad3d": "reflection_pad3d_out_cuda",
    "scatter_gather_scalar_cuda": "cuda_scatter_fill_base_kernel_func",
    "sigmoid_cuda_reduced_float": "sigmoid_cuda",
    "sorting_kernel_method_name": "sortKeyValueInplace",
    "take_put_cuda": "put_cuda",
    "upsample_nearest2d_channels_last": "upsample_nearest2d_out_frame",
}
# The same of one operator.
_OF_OPERATOR: dict[tuple[str, str], _Name] = {
    **{
        (f"{name}{mode}{dims}d", "compute_indices_weights_nearest"): (
            f"upsample_nearest{dims}d_out_frame"
        )
        for name, mode in (("upsample_", "nearest"), ("_upsample_", "nearest_exact"))
        for dims in (1, 2, 3)
    },
    ("aminmax", "aminmax_cuda"): _aminmax,
    ("div", "div_cuda"): "div_true_cuda",
    ("mean", "sum_cuda"): "mean_cuda",
    ("take", "take_put_cuda"): "take_cuda",
    ("trace", "trace"): "sum_cuda",
    ("upsample_linear1d", "compute_indices_weights_linear"): "upsample_linear1d_out_frame",
    ("upsample_trilinear3d", "compute_indices_weights_linear"): "upsample_trilinear3d_out_frame",
    ("vdot", "dot"): "vdot",
}
# Sentences of the CPU's kernels, and CUDA's.
_SENTENCES = {
    "expected m1 and m2 to have the same dtype": "expected mat1 and mat2 to have the same dtype",
}


# Of lists that are gone through in one launch, by the overload.
_OF_LISTS = {
    "default": "foreach_unary_op_cuda",
    "List": "foreach_binary_op_list_cuda",
    "Scalar": "foreach_binary_op_scalar_cuda",
    "ScalarList": "foreach_binary_op_scalarlist_cuda",
}
_LISTS = {
    "addcdiv": "foreach_pointwise_op_cuda",
    "addcmul": "foreach_pointwise_op_cuda",
    "lerp": "foreach_tensor_lerp_scalar_cuda",
    "norm": "foreach_tensor_norm_cuda",
}


def _are_integers(args: _Args) -> bool:
    """Whether a list has integers, which are read one by one."""
    first = args[0][0] if args and args[0] else None
    return first is None or not (first.is_floating_point() or first.is_complex())


def in_words_of_cuda(
    text: str, op: torch._ops.OpOverload, args: _Args, kwargs: Mapping[str, Any]
) -> str:
    """The error of a CPU kernel of `op`, called with these arguments, as CUDA's kernel has it."""
    name = op._schema.name.removeprefix("aten::").removesuffix("_")

    def renamed(found: re.Match[str]) -> str:
        kernel = found[1]
        if name.startswith("_foreach_") and not _are_integers(args):
            kernel = _LISTS.get(name[9:]) or _OF_LISTS.get(op._overloadname, kernel)
            return f'"{kernel}"'
        of_cpu = _OF_CPU.fullmatch(kernel)
        if of_cpu is not None:
            kernel = f"{of_cpu[1]}_cuda{of_cpu[2]}"
        other = _OF_OPERATOR.get((name, kernel)) or _NAMES.get(kernel, kernel)
        if not isinstance(other, str):
            other = other(args, kwargs) if args else kernel
        return f'"{other}"'

    for sentence, other in _SENTENCES.items():
        text = text.replace(sentence, other)
    return _NAMED.sub(renamed, text)
