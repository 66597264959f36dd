"""Fourier transforms of halves: torch.fft takes them on CUDA, and refuses them elsewhere.

PyTorch's code asks which type of device a tensor is on before it calls a kernel. Here it is handed
complex numbers of half precision, which it takes from any device, or its kernel is called. As with
cuFFT, sizes are powers of two (ATen/native/cuda/CuFFTPlanCache.h). bfloat16 becomes float32, since
torch 2.14 (promote_type_fft in ATen/native/SpectralOps.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from simgpu._core.launch import HOST_KEYS
from simgpu._ops.calls import schema_of
from simgpu._ops.dtypes import COMPLEX_HALF, HALVES, SINCE_2_14, Wider, name_of
from simgpu._ops.table import HostCode, Keys, PythonKernel, row

Tensor = torch.Tensor
_aten = torch.ops.aten
_ORTHO = 1
_NONE, _BY_SIZE = 0, 2
_MOST_DIMS = 3  # of one plan of cuFFT
# Real numbers in, complex ones out; all others begin with complex numbers.
_OF_REAL = ("rfft", "rfft2", "rfftn", "ihfft", "ihfft2", "ihfftn")
_NAMES = (
    *_OF_REAL,
    *(f"{name}{dims}" for name in ("fft", "ifft", "irfft", "hfft") for dims in ("", "2", "n")),
)


def _kernel(name: str) -> PythonKernel:
    """The kernel of torch.fft's function `name`."""
    call = getattr(_aten, f"fft_{name}").default
    compose = partial(call._handle.redispatch_boxed, HOST_KEYS)

    def run(_: Keys, self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.dtype is torch.bfloat16 and SINCE_2_14:
            return call(self.float(), *args, **kwargs)
        if self.dtype is not torch.float16:
            return compose(self, *args, **kwargs)
        if name not in _OF_REAL:
            return call(self.to(torch.complex32), *args, **kwargs)
        call(self.to("meta"), *args, **kwargs)  # says what is wrong with the arguments
        given = schema_of(call).named((self, *args), kwargs)
        return _of_halves(name, given.pop("self"), **given)

    return run


def _of_halves(
    name: str,
    x: Tensor,
    n: int | None = None,
    s: Sequence[int] | None = None,
    dim: int | Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """The transform `name` of a tensor of float16 whose arguments have been checked."""
    sizes = [n] if n is not None else s
    if dim is None:
        default = {"": [-1], "2": [-2, -1], "n": [*range(-x.dim(), 0)]}[name.lstrip("irhft")]
        dim = default if sizes is None or name[-1] != "n" else [*range(-len(sizes), 0)]
    dims = [d % x.dim() for d in ([dim] if isinstance(dim, int) else dim)]
    for d, size in zip(dims, sizes or (), strict=False):
        if size not in (-1, x.shape[d]):
            more = [0, 0] * (x.dim() - 1 - d) + [0, size - x.shape[d]]
            x = torch.constant_pad_nd(x, more)
    forward = name.startswith("r")
    mode = _ORTHO if norm == "ortho" else _NONE if forward != (norm == "forward") else _BY_SIZE
    if forward or len(dims) == 1:
        found: Tensor = _aten._fft_r2c(x, dims, mode, True)
        return found if forward else found.conj()
    found = _aten._fft_r2c(x, dims[-1:], mode, True).conj_physical()
    return _aten._fft_c2c(found, dims[:-1], mode, False)  # type: ignore[no-any-return]


def transformed_dims(arguments: dict[str, Any]) -> None:
    """Dimensions of the tensor, counted from its first; powers of two for numbers of 16 bits."""
    given: Tensor = arguments["self"]
    for dim in arguments["dim"]:
        if not 0 <= dim < given.dim():
            raise IndexError(
                f"a Fourier transform of a tensor of {given.dim()} dimensions has no dim {dim}"
            )
    if not given.numel():
        return
    if given.dtype is torch.bfloat16:
        raise RuntimeError(f"cuFFT doesn't support tensor of type: {name_of(given.dtype)}")
    if given.dtype not in (torch.float16, torch.complex32):
        return
    sizes = [given.shape[dim] for dim in arguments["dim"]]
    if "last_dim_size" in arguments and sizes:
        sizes[-1] = arguments["last_dim_size"]
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half "
            f"precision, but got a signal size of{sizes}"
        )


def _like_cufft(
    kind: str,
    stock: HostCode,
    keys: Keys,
    self: Tensor,
    dim: Sequence[int],
    *args: Any,
    **out: Tensor,
) -> Tensor:
    """A transform whose result has cuFFT's strides (ATen/native/cuda/SpectralOps.cpp).

    `kind` is "c2c", "r2c" or "c2r".
    """
    found: Tensor = stock(keys, self, dim, *args, **out)
    if out or not dim or not found.numel():
        return found
    order = sorted(range(self.dim()), key=self.stride, reverse=True)
    plans = [list(dim)]  # of "r2c" and "c2r", where cuFFT takes all dimensions at once
    if kind == "c2c":
        plans = _plans(order, dim)
    elif len(dim) > _MOST_DIMS or list(dim[:2]) == [0, 1]:
        if kind == "r2c":
            plans = [[dim[-1]], *_plans(_after(order, [dim[-1]]), dim[:-1])]
        else:
            plans = [*_plans(order, dim[:-1]), [dim[-1]]]
    elif kind == "c2r":
        order = sorted(order)  # of a dense copy, which cuFFT overwrites
    for plan in plans:
        order = _after(order, plan)
    back = [order.index(each) for each in range(self.dim())]
    return found.permute(order).contiguous().permute(back)


def _after(order: list[int], plan: list[int]) -> list[int]:
    """The order of dimensions after a plan of cuFFT: those that it transforms come last."""
    return [each for each in order if each not in plan] + plan


def _plans(order: list[int], dims: Sequence[int]) -> list[list[int]]:
    """Split the dimensions into cuFFT's plans for complex numbers, the innermost ones first."""
    plans, left = [], set(dims)
    while left:
        plans.append([each for each in order if each in left][-_MOST_DIMS:])
        left -= set(plans[-1])
        order = _after(order, plans[-1])
    return plans


for _name in _NAMES:
    row(f"fft_{_name}", above_autograd=_kernel(_name))
for _kind in ("c2c", "c2r", "r2c"):
    row(
        f"_fft_{_kind}",
        checks=(transformed_dims,),
        wider=Wider(HALVES if _kind == "r2c" else COMPLEX_HALF),
        host=partial(_like_cufft, _kind),
        wrong_on_meta=True,  # other strides, and some conjugate lazily
    )
