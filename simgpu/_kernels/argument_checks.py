"""Checks in front of CPU kernels that would read past memory on wrong arguments, or take more.

Most of PyTorch's CPU kernels check what they are given. A few leave it to their callers, and with
other arguments they take the interpreter down; on a GPU the same calls raise or compute nonsense.
A few take sizes or options for which CUDA has no kernel. Each check here raises instead. To add
one, write a function in `index_checks` (values), `shape_checks`, `expected_shapes` (arguments of
backward operators) or `solvers` (linear algebra), and name it in `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from simgpu._kernels import expected_shapes, index_checks, shape_checks, solvers
from simgpu._kernels.overloads import PythonKernel, overload
from simgpu._runtime import executors
from simgpu._runtime.instruments import hooks
from simgpu._runtime.launch import HOST_KEYS

# Called with the arguments of a call, by their names, and raises or returns.
_Check = Callable[[dict[str, Any]], None]


def _both(first: _Check, second: _Check) -> _Check:
    def check(arguments: dict[str, Any]) -> None:
        first(arguments)
        second(arguments)

    check.readers = (first, second)  # type: ignore[attr-defined]
    return check


CHECKS: dict[str, _Check] = {
    "_adaptive_avg_pool2d_backward": partial(shape_checks.adaptive_avg_pool_backward, dims=2),
    "_adaptive_avg_pool3d_backward": partial(shape_checks.adaptive_avg_pool_backward, dims=3),
    "_batch_norm_no_update": shape_checks.batch_norm,
    "_batch_norm_with_update": shape_checks.batch_norm,
    "_cdist_backward": expected_shapes.cdist_backward,
    "_compute_linear_combination": expected_shapes.linear_combination,
    "_convert_indices_from_coo_to_csr": index_checks.converted_indices,
    "_convert_indices_from_csr_to_coo": index_checks.converted_indices,
    "_ctc_loss": index_checks.ctc_loss,
    "_ctc_loss_backward": index_checks.ctc_loss,
    "_cummax_helper": shape_checks.running_extreme,
    "_cummin_helper": shape_checks.running_extreme,
    "_embedding_bag": index_checks.embedding_bag,
    "_embedding_bag_backward": index_checks.embedding_bag,
    "_embedding_bag_dense_backward": index_checks.embedding_bag,
    "_embedding_bag_forward_only": index_checks.embedding_bag,
    "_embedding_bag_per_sample_weights_backward": index_checks.embedding_bag,
    "_fft_c2c": expected_shapes.transformed_dims,
    "_fft_c2r": expected_shapes.transformed_dims,
    "_fft_r2c": expected_shapes.transformed_dims,
    "_fused_moving_avg_obs_fq_helper": expected_shapes.moving_average,
    "_grid_sampler_2d_cpu_fallback_backward": expected_shapes.grid_sampler_backward,
    "_int_mm": shape_checks.int8_product,
    "_linalg_svd": solvers.svd_driver,
    "_log_softmax_backward_data": expected_shapes.softmax_backward,
    "_masked_softmax_backward": expected_shapes.softmax_backward,
    "_native_batch_norm_legit": shape_checks.batch_norm,
    "_native_batch_norm_legit_no_training": shape_checks.batch_norm,
    "_pad_packed_sequence": index_checks.packed_sequence,
    "_pdist_backward": expected_shapes.pdist_backward,
    "_scaled_dot_product_flash_attention_for_cpu": shape_checks.flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": shape_checks.flash_attention,
    "_scaled_mm": shape_checks.scaled_product,
    "_scaled_mm_v2": shape_checks.scaled_product,
    "_segment_reduce_backward": _both(
        index_checks.segment_reduce, expected_shapes.segment_reduce_backward
    ),
    "_slow_conv2d_backward": expected_shapes.slow_conv_backward,
    "_sobol_engine_draw": expected_shapes.sobol,
    "_sobol_engine_ff_": expected_shapes.sobol,
    "_sobol_engine_initialize_state_": expected_shapes.sobol,
    "_sobol_engine_scramble_": expected_shapes.sobol,
    "_sparse_broadcast_to": shape_checks.sparse_broadcast,
    "_transform_bias_rescale_qkv": expected_shapes.rescaled_qkv,
    "_upsample_bicubic2d_aa": partial(shape_checks.antialiased, taps=4),
    "_upsample_bilinear2d_aa": partial(shape_checks.antialiased, taps=2),
    "_weight_int8pack_mm": shape_checks.int8_weights,
    "adaptive_max_pool2d_backward": partial(index_checks.pooled_indices, dims=2),
    "adaptive_max_pool3d_backward": partial(index_checks.pooled_indices, dims=3),
    "avg_pool2d_backward": expected_shapes.avg_pool_backward,
    "avg_pool3d_backward": expected_shapes.avg_pool_backward,
    "batch_norm_backward": shape_checks.batch_norm,
    "batch_norm_update_stats": shape_checks.batch_norm,
    "embedding": shape_checks.embedding,
    "embedding_dense_backward": index_checks.embedding_backward,
    "kthvalue": shape_checks.few_dims,
    "linalg_ldl_solve": _both(solvers.ldl_solve, index_checks.pivots),
    "linalg_lstsq": solvers.lstsq_driver,
    "linalg_lu_solve": index_checks.pivots,
    "lu_unpack": index_checks.pivots,
    "max_pool2d_with_indices_backward": partial(index_checks.pooled_indices, dims=2),
    "max_pool3d_with_indices_backward": partial(index_checks.pooled_indices, dims=3),
    "median": shape_checks.few_dims,
    "mode": shape_checks.few_dims,
    "multi_margin_loss_backward": expected_shapes.multi_margin_backward,
    "nanmedian": shape_checks.few_dims,
    "native_batch_norm": shape_checks.batch_norm,
    "native_batch_norm_backward": shape_checks.batch_norm,
    "native_layer_norm_backward": expected_shapes.layer_norm_backward,
    "nll_loss2d_backward": index_checks.nll_loss_backward,
    "nll_loss_backward": index_checks.nll_loss_backward,
    "segment_reduce": index_checks.segment_reduce,
    **{
        f"{kind}_pad{dims}d_backward": expected_shapes.padding_backward
        for kind in ("reflection", "replication")
        for dims in (1, 2, 3)
    },
    **{
        f"_fused_{name}{in_place}": shape_checks.fused_optimizer
        for name in ("adagrad", "adam", "adamw", "sgd")
        for in_place in ("_", "")
    },
    **{
        name: partial(shape_checks.few_dims, words=words, most=25)
        for name, words in {
            "index_add": "tensor has too many (>25) dims",
            "index_reduce": "tensor has too many (>25) dims",
            "index_select": "Tensor too large or too many (> 25) dimensions",
            "nonzero": "nonzero is not supported for tensor with more than 25 dimensions",
            "sort": "value tensor has too many dimensions",
            "topk": "input tensor has too many dimensions",
        }.items()
    },
}


def with_check(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, behind the check that its operator needs; most need none.

    An executor, which may run the kernel later, checks values itself when it does.
    """
    check = CHECKS.get(op._schema.name.removeprefix("aten::"))
    if check is None:
        return kernel
    names = [argument.name for argument in op._schema.arguments]

    def checked(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        check({**dict(zip(names, args, strict=False)), **kwargs})

    if not _reads_values(check):

        def run(*args: Any, **kwargs: Any) -> Any:
            checked(args, kwargs)
            return kernel(*args, **kwargs)

        return run
    executors.value_checks[op] = checked

    def run_or_queue(*args: Any, **kwargs: Any) -> Any:
        if hooks.executor is None:
            checked(args, kwargs)
        return kernel(*args, **kwargs)

    return run_or_queue


def _reads_values(check: _Check) -> bool:
    """Whether a check looks at values of tensors, and not at their shapes and dtypes alone."""
    functions = getattr(check, "readers", None) or (getattr(check, "func", check),)
    return any(function.__module__ == index_checks.__name__ for function in functions)


def checked_composite(name: str) -> PythonKernel:
    """The kernel of an operator that PyTorch composes of others, and that needs a check before.

    For registration under autograd's key, where PyTorch's own code would stand.
    """
    op = overload(name)
    compose = partial(op._handle.redispatch_boxed, HOST_KEYS)  # the same code under every key
    check = CHECKS[op._schema.name.removeprefix("aten::")]
    names = [argument.name for argument in op._schema.arguments]

    def run(_: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        executors.finish()  # nothing is launched that could be checked later
        check({**dict(zip(names, args, strict=False)), **kwargs})
        return compose(*args, **kwargs)

    return run
