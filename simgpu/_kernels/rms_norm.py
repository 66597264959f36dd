"""What CUDA's kernel of `rms_norm` asks of devices and dtypes, in front of PyTorch's composite.

CUDA has one kernel (`_fused_rms_norm`, ATen/native/cuda/layer_norm_kernel.cu), which is used where
the input and its weight are of one dtype. Elsewhere PyTorch composes it of other operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from simgpu._kernels.dtype_rules import no_kernel
from simgpu._kernels.mixed_devices import DeviceRules
from simgpu._kernels.overloads import overload
from simgpu._runtime.launch import HOST_KEYS

Tensor = torch.Tensor
_compose = partial(overload("rms_norm")._handle.redispatch_boxed, HOST_KEYS)


def rms_norm(
    _: torch._C.DispatchKeySet,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """`torch.nn.functional.rms_norm`; raises DeviceMismatchError and NotImplementedError as CUDA.

    Shapes are checked by PyTorch's composite.
    """
    shape = tuple(normalized_shape)
    fits = tuple(input.shape[-len(shape) :]) == shape and (weight is None or weight.shape == shape)
    fused = fits and (weight is None or weight.dtype == input.dtype)
    if fused and weight is not None and weight.device != input.device:
        rules = DeviceRules(overload("_fused_rms_norm"))
        rules.device_of_mixed_tensors((input, shape, weight, eps), {})
    if fused and not (input.is_floating_point() or input.is_complex()):
        if input.numel():
            raise no_kernel("LayerNormKernelImpl", input.dtype)
        return torch.empty_like(input)
    normalized: Tensor = _compose(input, normalized_shape, weight, eps)
    return normalized


# The fused kernel is there since a release.
KERNELS = {"rms_norm": rms_norm} if hasattr(torch.ops.aten, "_fused_rms_norm") else {}
