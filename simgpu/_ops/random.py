"""Operators that draw: new tensors with random numbers, dropout, rows and checks of all others."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from simgpu._core import world
from simgpu._core.hooks import hooks
from simgpu._core.launch import Kernel, launch
from simgpu._memory.ownership import adopt, check_memory
from simgpu._memory.pinned import check_not_wanted
from simgpu._native.relabel import HOST, relabel
from simgpu._ops.calls import overload
from simgpu._ops.dtypes import HALVES, Wider, name_of, no_kernel
from simgpu._ops.from_schema import Draw, computed, source_of
from simgpu._ops.rules import few_dims
from simgpu._ops.table import Keys, PythonKernel, row
from simgpu._random.fill import Source
from simgpu._random.samplers import REAL, dropout_parameters, fill_mask

Tensor = torch.Tensor
_CPU = torch.device("cpu")
_EMPTY = Kernel(overload("empty.memory_format"))
_NO_OPTIONS: dict[str, Any] = {}


def _drawing_new(
    _: torch._ops.OpOverload, name: str, usual: torch.dtype | None = None
) -> PythonKernel:
    """The kernel of a new tensor that is filled by `name`: `rand`, `randn`, `randint`.

    The size is the last argument of the call; those before it go to `name`. Without a dtype it is
    `usual`, where None is PyTorch's default. PyTorch does the same in two calls, of which each
    would have to find its way here.
    """
    draw = Draw(Kernel(overload(name)))
    both = Kernel(overload(name), _made_and_filled)

    def run(
        *args: Any,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,  # strided: others have kernels of their own
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> Tensor:
        *filled_by, size = args
        check_not_wanted(pin_memory)
        if dtype is None:
            dtype = usual or torch.get_default_dtype()
        index = None if device is None else device.index
        index = world.current_device() if index is None else index
        check_memory(index, size, dtype)
        chosen, source = draw.choose(index, generator, 0 not in size)
        if hooks.launches or hooks.before_allocate:
            # As on CUDA, memory comes first: without it nothing is drawn.
            tensor = adopt(launch(_EMPTY, index, (size,), _options(dtype)), index)
            launch(chosen, index, (relabel(tensor), *filled_by), {"generator": source})
            return tensor
        # No instrument looks and there is room: both at once.
        fill, new = chosen.run, None
        if isinstance(source, Source):
            fill = draw.sampler
            new = draw.new if dtype is torch.float32 else None
        made = launch(both, index, (size, dtype, new, fill, filled_by, source), _NO_OPTIONS)
        return adopt(made, index)

    return run


def _options(dtype: torch.dtype) -> dict[str, Any]:
    return {"dtype": dtype, "device": _CPU}


def _made_and_filled(keys: Keys, *args: Any) -> Tensor:
    """A new tensor on the host, with numbers in it: by `new` if that can make it."""
    size, dtype, new, fill, filled_by, source = args
    with torch._C.DisableTorchFunction():
        tensor: Tensor | None = None if new is None else new(keys, size, source)
        if tensor is None:
            tensor = _EMPTY.run(keys, size, **_options(dtype))
            fill(keys, tensor, *filled_by, generator=source)
    return tensor


# Dropout, whose operator has no argument for the generator.
#
# The host's kernel would consume the default CPU one. With CUDA's generator the mask is that of a
# GPU (`simgpu._random.samplers`). The backward kernels of the host and of CUDA give the same
# numbers as the one here (the scale is a float, and the product is rounded once), which is twice as
# fast: PyTorch has no vector code that reads booleans, but has some that reads the same bytes as
# integers.

_aten = torch.ops.aten
_empty_like = _aten.empty_like.default._handle.redispatch_boxed
_bernoulli = _aten.bernoulli_.float._handle.redispatch_boxed
_mul = _aten.mul.Tensor._handle.redispatch_boxed
_mul_ = _aten.mul_.Scalar._handle.redispatch_boxed


def _host_dropout(
    keys: Keys, tensor: Tensor, p: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    mask = _empty_like(keys, tensor, dtype=torch.bool)
    _bernoulli(keys, mask, 1 - p, generator=generator)
    kept = _mul(keys, tensor, mask.view(torch.uint8))
    return _mul_(keys, kept, 0.0 if p == 1 else 1 / (1 - p)), mask


def _cuda_dropout(keys: Keys, tensor: Tensor, p: float, source: Source) -> tuple[Tensor, Tensor]:
    mask = _empty_like(keys, tensor, dtype=torch.bool)
    if p == 1 or not tensor.numel():  # draws nothing
        return _empty_like(keys, tensor).zero_(), mask.zero_()
    _refuse_unless_real(tensor, "fused_dropout")
    keep, scale = dropout_parameters(p, tensor.dtype)
    with torch._C.DisableTorchFunction():
        fill_mask(mask, tensor, keep, source)
        kept = _mul(keys, tensor, mask.view(torch.uint8))
        if kept.itemsize > 2:
            return _mul_(keys, kept, scale), mask
        # The CPU rounds a number to the tensor's dtype first, but not a tensor of one float.
        return kept.mul_(torch.tensor(scale, dtype=torch.float32, device="cpu")), mask


def _host_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            f"Mask should be Bool Scalar Type, got {mask.dtype}: hand over mask.bool()"
        )
    _refuse_unless_real(grad_output, "masked_scale")
    return (grad_output * mask.view(torch.uint8)).mul_(scale)


def _refuse_unless_real(tensor: Tensor, name: str) -> None:
    """Raise where CUDA has no kernel of this name for the dtype."""
    if tensor.dtype not in REAL:
        raise no_kernel(name, tensor.dtype)


_DROPOUT = Kernel(_aten.native_dropout.default, _host_dropout)
_CUDA_DROPOUT = Kernel(_aten.native_dropout.default, _cuda_dropout)
_IDENTITY = Kernel(
    _aten.native_dropout.default,
    lambda keys, x: (x.clone(), _empty_like(keys, x, dtype=torch.bool).fill_(True)),
)


def native_dropout(input: Tensor, p: float, train: bool | None) -> Any:
    """Zero elements with probability `p` and scale the rest; the mask is the second result."""
    index = input.get_device()
    host = relabel(input, HOST)
    source = source_of(world.device(index))
    is_cuda = isinstance(source, Source)  # which draws where p is 0, too
    if train is False or (p == 0 and not is_cuda):
        result = launch(_IDENTITY, index, (host,), {})
    else:
        result = launch(_CUDA_DROPOUT if is_cuda else _DROPOUT, index, (host, p, source), {})
    return tuple(adopt(tensor, index) for tensor in result)


# Rows and checks


def _chances(self: Tensor, p: Tensor, **_: Any) -> None:
    if not p.is_floating_point() and self.numel():
        raise RuntimeError(
            f"expected probabilities tensor to have floating type, got {name_of(p.dtype)}"
        )


def _randperm(
    n: int, dtype: torch.dtype | None = None, out: Tensor | None = None, **_: Any
) -> None:
    dtype = dtype if out is None else out.dtype
    if dtype is torch.bfloat16 and n:
        raise no_kernel("randperm_out_cuda", dtype)


def sobol(arguments: dict[str, Any]) -> None:
    """One row for each dimension of the sequence in everything that it is drawn from."""
    dimension = arguments["dimension"]
    for name in ("self", "quasi", "sobolstate", "ltm"):
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.shape[:1] != (dimension,):
            raise RuntimeError(
                f"a Sobol sequence of {dimension} dimensions: expected {name} of as many rows, got "
                f"shape {tuple(given.shape)}"
            )


row("rand[.generator]", make=partial(_drawing_new, name="uniform_"))
row(
    "randint.low[_generator]",
    make=partial(_drawing_new, name="random_.from", usual=torch.int64),
)
row("randn[.generator]", make=partial(_drawing_new, name="normal_"))
row("randperm", dtypes=_randperm)
row("bernoulli[_].Tensor[_out]", dtypes=_chances)
# Where chances are a tensor, not one number.
row("bernoulli_", checks=(partial(few_dims, only=lambda call: isinstance(call.get("p"), Tensor)),))
row("binomial", no_cpu_numbers={"count": "", "prob": ""})
row("poisson", "_standard_gamma", checks=(few_dims,))
row("_sample_dirichlet", "_standard_gamma", "_standard_gamma_grad", wider=Wider(HALVES))
row(
    *("bernoulli_", "exponential_", "geometric_", "log_normal_", "normal_", "randn", "random_"),
    "rrelu_with_noise[_]",
    none_if_empty=True,
)
row(
    *("_sobol_engine_draw", "_sobol_engine_ff_"),
    *("_sobol_engine_initialize_state_", "_sobol_engine_scramble_"),
    checks=(sobol,),
)
row("native_dropout", kernel=native_dropout, checks=(few_dims,))
row("native_dropout_backward", make=computed(_host_backward))
