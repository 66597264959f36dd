"""Which check runs before which operator, and which operators have no deterministic kernel.

Most of PyTorch's CPU kernels check what they are given. A few leave it to their callers, and with
other arguments they take the interpreter down; on a GPU the same calls raise or compute nonsense.
A few take sizes or options for which CUDA has no kernel. Each check here raises instead. To add
one, write a function in `checks` or, for linear algebra, in `linalg`, and name it in `CHECKS`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from simgpu._core import hooks as core_hooks
from simgpu._core.hooks import hooks
from simgpu._core.launch import HOST_KEYS
from simgpu._ops import checks, linalg
from simgpu._ops.calls import PythonKernel, overload

# Called with the arguments of a call, by their names, and raises or returns.
_Check = Callable[[dict[str, Any]], None]


def _both(first: _Check, second: _Check) -> _Check:
    def check(arguments: dict[str, Any]) -> None:
        first(arguments)
        second(arguments)

    check.readers = (first, second)  # type: ignore[attr-defined]
    return check


CHECKS: dict[str, _Check] = {
    "_adaptive_avg_pool2d_backward": partial(checks.adaptive_avg_pool_backward, dims=2),
    "_adaptive_avg_pool3d_backward": partial(checks.adaptive_avg_pool_backward, dims=3),
    "_batch_norm_no_update": checks.batch_norm,
    "_batch_norm_with_update": checks.batch_norm,
    "_cdist_backward": checks.cdist_backward,
    "_compute_linear_combination": checks.linear_combination,
    "_convert_indices_from_coo_to_csr": checks.converted_indices,
    "_convert_indices_from_csr_to_coo": checks.converted_indices,
    "_ctc_loss": checks.ctc_loss,
    "_ctc_loss_backward": checks.ctc_loss,
    "_cummax_helper": checks.running_extreme,
    "_cummin_helper": checks.running_extreme,
    "_embedding_bag": checks.embedding_bag,
    "_embedding_bag_backward": checks.embedding_bag,
    "_embedding_bag_dense_backward": checks.embedding_bag,
    "_embedding_bag_forward_only": checks.embedding_bag,
    "_embedding_bag_per_sample_weights_backward": checks.embedding_bag,
    "_fft_c2c": checks.transformed_dims,
    "_fft_c2r": checks.transformed_dims,
    "_fft_r2c": checks.transformed_dims,
    "_grid_sampler_2d_cpu_fallback_backward": checks.grid_sampler_backward,
    "_int_mm": checks.int8_product,
    "_linalg_svd": linalg.svd_driver,
    "_log_softmax_backward_data": checks.softmax_backward,
    "_masked_softmax_backward": checks.softmax_backward,
    "_native_batch_norm_legit": checks.batch_norm,
    "_native_batch_norm_legit_no_training": checks.batch_norm,
    "_pad_packed_sequence": checks.packed_sequence,
    "_pdist_backward": checks.pdist_backward,
    "_scaled_dot_product_flash_attention_for_cpu": checks.flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": checks.flash_attention,
    "_scaled_mm": checks.scaled_product,
    "_scaled_mm_v2": checks.scaled_product,
    "_segment_reduce_backward": _both(checks.segment_reduce, checks.segment_reduce_backward),
    "_slow_conv2d_backward": checks.slow_conv_backward,
    "_sobol_engine_draw": checks.sobol,
    "_sobol_engine_ff_": checks.sobol,
    "_sobol_engine_initialize_state_": checks.sobol,
    "_sobol_engine_scramble_": checks.sobol,
    "_sparse_broadcast_to": checks.sparse_broadcast,
    "_transform_bias_rescale_qkv": checks.rescaled_qkv,
    "_upsample_bicubic2d_aa": partial(checks.antialiased, taps=4),
    "_upsample_bilinear2d_aa": partial(checks.antialiased, taps=2),
    "_weight_int8pack_mm": checks.int8_weights,
    "adaptive_max_pool2d_backward": partial(checks.pooled_indices, dims=2),
    "adaptive_max_pool3d_backward": partial(checks.pooled_indices, dims=3),
    "avg_pool2d_backward": checks.avg_pool_backward,
    "avg_pool3d_backward": checks.avg_pool_backward,
    "batch_norm_backward": checks.batch_norm,
    "batch_norm_update_stats": checks.batch_norm,
    "embedding": checks.embedding,
    "embedding_dense_backward": checks.embedding_backward,
    "linalg_ldl_solve": _both(linalg.ldl_solve, checks.pivots),
    "linalg_lstsq": linalg.lstsq_driver,
    "linalg_lu_solve": checks.pivots,
    "lu_unpack": checks.pivots,
    "max_pool2d_with_indices_backward": partial(checks.pooled_indices, dims=2),
    "max_pool3d_with_indices_backward": partial(checks.pooled_indices, dims=3),
    "multi_margin_loss_backward": checks.multi_margin_backward,
    "native_batch_norm": checks.batch_norm,
    "native_batch_norm_backward": checks.batch_norm,
    "native_layer_norm_backward": checks.layer_norm_backward,
    "nll_loss2d_backward": checks.nll_loss_backward,
    "nll_loss_backward": checks.nll_loss_backward,
    "segment_reduce": checks.segment_reduce,
    **{
        f"{kind}_pad{dims}d_backward": checks.padding_backward
        for kind in ("reflection", "replication")
        for dims in (1, 2, 3)
    },
    **{
        f"_fused_{name}{in_place}": checks.fused_optimizer
        for name in ("adagrad", "adam", "adamw", "sgd")
        for in_place in ("_", "")
    },
    **{
        name: partial(checks.few_dims, past=words)
        for name, words in {
            "_standard_gamma": "",
            "histc": "",
            "index_reduce": "tensor has too many (>25) dims",
            "index_select": "Tensor too large or too many (> 25) dimensions",
            "kthvalue": "cannot operate on more than 25 dimensions",
            "native_dropout": "",
            "poisson": "",
            "topk": "input tensor has too many dimensions",
            "tril": "",
            "triu": "",
        }.items()
    },
    **{
        name: partial(
            checks.few_dims_along_one,
            past="median() cannot operate on more than 25 dimensions",
        )
        for name in ("median", "nanmedian")
    },
    "bernoulli_": checks.few_dims_of_chances,
    "index_add": partial(checks.few_dims_of_sums, past="tensor has too many (>25) dims"),
    "mode": partial(checks.few_dims, sorts=True),
    "sort": partial(checks.few_dims, past="value tensor has too many dimensions", sorts=True),
    **{
        name: partial(checks.at_most_25_dims, words=words)
        for name, words in {
            "nonzero": "nonzero is not supported for tensor with more than 25 dimensions",
            "nonzero_static": "nonzero_static is not supported for tensor with more than 25 "
            "dimensions",
            "put": "tensor has too many (>25) dims",
            "put_": "tensor has too many (>25) dims",
            "take": "tensor has too many (>25) dims",
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
    core_hooks.value_checks[op] = checked

    def run_or_queue(*args: Any, **kwargs: Any) -> Any:
        if hooks.executor is None:
            checked(args, kwargs)
        return kernel(*args, **kwargs)

    return run_or_queue


def _reads_values(check: _Check) -> bool:
    """Whether a check looks at values of tensors, and not at their shapes and dtypes alone."""
    functions = getattr(check, "readers", None) or (getattr(check, "func", check),)
    return not checks.VALUE_CHECKS.isdisjoint(functions)


def checked_composite(name: str) -> PythonKernel:
    """The kernel of an operator that PyTorch composes of others, and that needs a check before.

    For registration under autograd's key, where PyTorch's own code would stand.
    """
    op = overload(name)
    compose = partial(op._handle.redispatch_boxed, HOST_KEYS)  # the same code under every key
    check = CHECKS[op._schema.name.removeprefix("aten::")]
    names = [argument.name for argument in op._schema.arguments]

    def run(_: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        core_hooks.finish_queued_work()  # nothing is launched that could be checked later
        check({**dict(zip(names, args, strict=False)), **kwargs})
        return compose(*args, **kwargs)

    return run


# Kernels that CUDA has in no deterministic form: refused under `use_deterministic_algorithms`.
#
# They add up by atomic operations, in an order that no two runs share; the CPU's kernels do not,
# and say nothing. `torch.use_deterministic_algorithms(True)` makes them raise on CUDA, and with
# `warn_only=True` warn, in the words of the kernel.
#
# Source: the calls of `alertNotDeterministic` in PyTorch's aten/src/ATen/native/cuda; the list that
# `torch.use_deterministic_algorithms` is documented with.

_MAXIMUM = 2  # as embedding bags number their modes
_asked: Callable[[], bool] = torch._C._get_deterministic_algorithms
_warns: Callable[[], bool] = torch._C._get_deterministic_algorithms_warn_only

_Holds = Callable[[dict[str, Any]], bool]


def _of_maxima(call: dict[str, Any]) -> bool:
    return bool(call["mode"] == _MAXIMUM)


def _of_a_product(call: dict[str, Any]) -> bool:
    return bool(call["reduce"] == "prod")


# By operator: what CUDA's kernel is called, and of which calls it is true (None: of all), which
# are handed over as the arguments by their names.
_RULES: dict[str, tuple[str, _Holds | None]] = {
    "_adaptive_avg_pool2d_backward": ("adaptive_avg_pool2d_backward_cuda", None),
    "_adaptive_avg_pool3d_backward": ("adaptive_avg_pool3d_backward_cuda", None),
    "_ctc_loss_backward": ("ctc_loss_backward_gpu", None),
    "_embedding_bag_backward": ("embedding_bag_backward_cuda_max", _of_maxima),
    "_embedding_bag_dense_backward": ("embedding_bag_backward_cuda_max", _of_maxima),
    "adaptive_max_pool2d_backward": ("adaptive_max_pool2d_backward_cuda", None),
    "avg_pool3d_backward": ("avg_pool3d_backward_cuda", None),
    "bincount": ("_bincount_cuda", lambda call: call.get("weights") is not None),
    "fractional_max_pool2d_backward": ("fractional_max_pool2d_backward_cuda", None),
    "fractional_max_pool3d_backward": ("fractional_max_pool3d_backward_cuda", None),
    "grid_sampler_2d_backward": ("grid_sampler_2d_backward_cuda", None),
    "grid_sampler_3d_backward": ("grid_sampler_3d_backward_cuda", None),
    "histc": (
        "_histc_cuda with floating point input",
        lambda call: bool(call["self"].is_floating_point()),
    ),
    "max_pool3d_with_indices_backward": ("max_pool3d_with_indices_backward_cuda", None),
    "median": ("median CUDA with indices output", lambda call: "dim" in call),
    "nanmedian": ("median CUDA with indices output", lambda call: "dim" in call),
    "nll_loss2d_forward": (
        "nll_loss2d_forward_out_cuda_template",
        lambda call: bool(call["reduction"]),
    ),
    "put": ("put_", None),
    "put_": ("put_", None),
    "reflection_pad1d_backward": ("reflection_pad1d_backward_out_cuda", None),
    "reflection_pad3d_backward": ("reflection_pad3d_backward_out_cuda", None),
    "scatter_reduce": ("scatter_reduce_cuda", _of_a_product),
    "scatter_reduce_": ("scatter_reduce_cuda", _of_a_product),
    "upsample_bicubic2d_backward": ("upsample_bicubic2d_backward_out_cuda", None),
    "upsample_bilinear2d_backward": ("upsample_bilinear2d_backward_out_cuda", None),
    "upsample_linear1d_backward": ("upsample_linear1d_backward_out_cuda", None),
    "upsample_trilinear3d_backward": ("upsample_trilinear3d_backward_out_cuda", None),
}


def with_determinism_rule(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, behind the question whether it has to be deterministic; most are."""
    rule = _RULES.get(op._schema.name.removeprefix("aten::"))
    if rule is None:
        return kernel
    its_kernel, holds = rule
    names = [argument.name for argument in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        if _asked() and (
            holds is None or holds({**dict(zip(names, args, strict=False)), **kwargs})
        ):
            _alert(its_kernel)
        return kernel(*args, **kwargs)

    return run


def _alert(kernel: str) -> None:
    """What `at::Context::alertNotDeterministic` does, of a kernel of CUDA."""
    means = f"{kernel} does not have a deterministic implementation, but you set"
    setting = "torch.use_deterministic_algorithms(True"
    place = "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic"
    if _warns():
        warnings.warn(
            f"{means} '{setting}, warn_only=True)'. You can file an issue at {place} support for "
            "this operation.",
            stacklevel=3,
        )
        return
    raise RuntimeError(
        f"{means} '{setting})'. You can turn off determinism just for this operation, or you can "
        "use the 'warn_only=True' option, if that's acceptable for your application. You can also "
        f"file an issue at {place} support for this operation."
    )
