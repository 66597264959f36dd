"""Kernels that CUDA has in no deterministic form: refused under `use_deterministic_algorithms`.

They add up by atomic operations, in an order that no two runs share; the CPU's kernels do not, and
say nothing. `torch.use_deterministic_algorithms(True)` makes them raise on CUDA, and with
`warn_only=True` warn, in the words of the kernel.

Source: the calls of `alertNotDeterministic` in PyTorch's aten/src/ATen/native/cuda; the list that
`torch.use_deterministic_algorithms` is documented with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from simgpu._kernels.overloads import PythonKernel

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
