"""Whether a kernel takes arguments of these shapes and dtypes: tried on values of its own.

Meta kernels answer calls that a kernel refuses, such as a product of two dtypes. On CUDA that is
told at once, since the host looks at shapes and dtypes before it launches anything. So the CPU's
kernel runs once for each kind of call, on memory that is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from simgpu._memory.ownership import with_bits
from simgpu._runtime.executors import value_checks
from simgpu._runtime.launch import HOST_KEYS, Kernel
from simgpu._runtime.modes import without_modes

Tensor = torch.Tensor
_CPU = torch.device("cpu")
# Not every kernel takes zeros, as divisors or lengths; ones are no indices of what has one element.
_FILLERS = (0, 1)


def is_taken(kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the kernel computes something from tensors like these.

    Operators of other libraries are not tried: what they do besides is unknown. Values that the
    operator's check refuses are not tried either: the kernel would trust them.
    """
    if kernel.op.namespace != "aten":
        return True
    check = value_checks.get(kernel.op)
    with torch._C.DisableTorchFunction(), without_modes(), torch.no_grad():
        for filler in _FILLERS:
            own_args = [_like(value, filler) for value in args]
            own_kwargs = {name: _like(value, filler) for name, value in kwargs.items()}
            try:
                if check is not None:
                    check(own_args, own_kwargs)
                kernel.run(HOST_KEYS, *own_args, **own_kwargs)
            except Exception:
                continue
            return True
    return False


def _like(value: Any, filler: int) -> Any:
    if isinstance(value, Tensor):
        host = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_CPU)
        # By its memory: an expanded tensor may have more elements than anybody can count.
        memory = host.untyped_storage().nbytes() // host.itemsize
        host.as_strided((memory,), (1,)).fill_(filler)
        return with_bits(host, value.is_conj(), value.is_neg())
    if isinstance(value, (list, tuple)):
        return [_like(item, filler) for item in value]
    return value
