"""What sums and products of sparse tensors ask for where their tensors lie on several devices.

The kernels of all other operators compare devices in front (`mixed_devices`). These look at their
arguments themselves, one after the other, each in words of its own
(aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu and SparseCsrTensorMath.cu,
aten/src/ATen/native/sparse/SparseTensorMath.cpp). Two GPUs are named as everywhere: the kernels
only say that a check has failed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor
_Named = dict[str, Tensor]

# Words for a tensor on the CPU, by the layout of the first argument.
_OF_COO = "add: expected '{}' to be CUDA, but got CPU"
_TO_DENSE = "add: expected '{}' to be a CUDA tensor, but got a CPU tensor"
_OF_CSR = "add: expected '{}' to be CUDA tensor, but got tensor on device: cpu"
_CSR_TO_DENSE = "add: expected '{}' to be a CUDA tensor, but got tensor on device: cpu"
_PRODUCT = "mul: expected '{}' to be CUDA, but got CPU"
_INDEXED = "indices should be either on cpu or on the same device as the indexed tensor ({})"
_MASKED = (
    "Expected all tensors to be on the same device, but got mask is on {}, different from other "
    "tensors on {} (when checking argument in method wrapper_{}__sparse_mask)"
)


def check(kind: str, base: str, named: _Named) -> None:
    """Raise DeviceMismatchError as the kernel of `base` ("add", "mul") does for tensors of `kind`.

    `named` has the tensors by the names of their arguments; other operators pass.
    """
    found = _CHECKS.get((kind, base))
    if found is not None:
        found(named)


def _ask(words: str, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.is_cpu:
            raise DeviceMismatchError(words.format(name))


def _sum_of_coo(named: _Named) -> None:
    one, other = named["self"], named["other"]
    out = named.get("out", one)
    if one.layout is torch.strided:
        _ask(_TO_DENSE, self=one, other=other, out=out)
    elif other.layout is torch.strided:
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    _ask(_OF_COO, self=one, other=other, out=out)


def _sum_of_csr(named: _Named) -> None:
    one, other = named["self"], named["other"]
    out = named.get("out", one)
    if torch.strided in (one.layout, other.layout):
        _ask(_CSR_TO_DENSE, self=one, out=out, other=other)
    _ask(_OF_CSR, self=one, other=other, out=out)


def _product_of_coo(named: _Named) -> None:
    one, other = named["self"], named["other"]
    if torch.strided not in (one.layout, other.layout):
        _ask(_PRODUCT, out=named.get("out", one), self=one, other=other)
        return
    sparse, dense = (one, other) if other.layout is torch.strided else (other, one)
    _ask(_PRODUCT, out=named.get("out", sparse), self=sparse)
    if dense.dim() and dense.device != sparse.device:
        raise DeviceMismatchError(_INDEXED.format(dense.device))


def _product_of_csr(named: _Named) -> None:
    one, other = named["self"], named["other"]
    if torch.strided not in (one.layout, other.layout):
        _ask(_PRODUCT, out=named.get("out", one), self=one, other=other)
        return
    sparse, dense = (one, other) if other.layout is torch.strided else (other, one)
    if dense.dim() and dense.device != sparse.device:
        method = f"SparseCsr{DEVICE_TYPE}"
        raise DeviceMismatchError(_MASKED.format(sparse.device, dense.device, method))


_CHECKS: dict[tuple[str, str], Callable[[_Named], None]] = {
    ("Sparse", "add"): _sum_of_coo,
    ("Sparse", "mul"): _product_of_coo,
    ("Sparse", "sub"): _sum_of_coo,
    ("SparseCsr", "add"): _sum_of_csr,
    ("SparseCsr", "mul"): _product_of_csr,
}
