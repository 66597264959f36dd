"""Operators that a simulated device refuses, each with the reason in its error.

Their results cannot lie on a device at all: without this they would end in the words of whatever
PyTorch tries next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu.errors import UnsupportedError

# Tensors of quantized dtypes are under a key of their own.
QUANTIZED_KEY = "QuantizedPrivateUse1"

_MAKE_QUANTIZED = ("quantize_per_", "_make_per_")
# Operators of which PyTorch has a kernel for the CPU, and none for CUDA.
_ON_CPU_ALONE = (
    "_add_relu",
    "_add_relu_",
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
    "_histogramdd_from_bin_tensors",
    "_spdiags",
    "_upsample_lanczos2d_aa",
    "_upsample_lanczos2d_aa_backward",
    "histogram",
    "slow_conv3d_forward",
)
_CPU_ALONE = (
    "PyTorch has it for the CPU alone, and raises on CUDA as well. Move the tensor to the CPU first"
)
_NO_QUANTIZED = (
    "tensors of quantized dtypes cannot lie on a simulated device. Quantize on the CPU, or as "
    "torch.fake_quantize_per_tensor_affine and torch.fake_quantize_per_channel_affine do"
)


def _refuse(op: torch._ops.OpOverload, reason: str) -> UnsupportedError:
    name = op._name.removesuffix(".default")
    return UnsupportedError(
        f"Could not run '{name}' with arguments from the '{DEVICE_TYPE}' backend: {reason}"
    )


def refusal(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The kernel that refuses `op`, or None where it is not refused."""
    name = op._schema.name.removeprefix("aten::")
    if "mkldnn" in name or name in _ON_CPU_ALONE:
        reason = _CPU_ALONE
    elif name.startswith(_MAKE_QUANTIZED):
        reason = _NO_QUANTIZED
    else:
        return None

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _refuse(op, reason)

    return refuse


def refuse_quantized(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Whatever is asked of a quantized tensor on a device, beginning with making one."""
    raise _refuse(op, _NO_QUANTIZED)
