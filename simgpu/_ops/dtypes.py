"""Dtypes: which of them CUDA's kernels have, and how those are computed that the CPU's lack.

`torch.mm` of two integer tensors is the best known: it works on the CPU, and ends a program on a
GPU with '"addmm_cuda" not implemented for 'Long''. So does a tensor of float8 that is multiplied
without `_scaled_mm`. The rows of operators name the dtypes that CUDA's kernel is compiled for, and
the error. The second part has the opposite: dtypes that CUDA has and the CPU has not.

Source: the AT_DISPATCH macros in PyTorch's aten/src/ATen/native/cuda, and the dtypes of CUDA in its
operator database (torch.testing._internal.common_methods_invocations).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_map, tree_map_only

from simgpu._ops.calls import Schema, schema_of
from simgpu._ops.table import HostCode, Keys, facts_of
from simgpu._util.naming import DEVICE_TYPE

Tensor = torch.Tensor

FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
AND_COMPLEX = FLOATING | {torch.complex64, torch.complex128}
HALF_DTYPES = frozenset({torch.float16, torch.bfloat16})
UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
_ALL_FLOAT8 = frozenset(found for name, found in vars(torch).items() if name.startswith("float8_"))
_ALL = frozenset(found for found in vars(torch).values() if isinstance(found, torch.dtype))
NO_UNSIGNED = _ALL - UNSIGNED
NO_COMPLEX_HALF = _ALL - {torch.complex32}
NO_FLOAT8 = _ALL - _ALL_FLOAT8
SINCE_2_14 = TorchVersion(torch.__version__) >= "2.14"
_NO_KERNEL = "\"{}\" not implemented for '{}'"
# The dtypes that tensor types have a name for in Python: torch.FloatTensor.
_WITH_TENSOR_TYPE = (
    *(torch.float16, torch.float32, torch.float64, torch.uint8),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)
# Names that C++ gives to dtypes, where they are not those of Python with a capital letter.
_NAMES = {
    **{
        dtype: storage.removesuffix("Storage")
        for dtype, storage in torch.storage._dtype_to_storage_type_map().items()
    },
    torch.complex32: "ComplexHalf",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
}


class Only(NamedTuple):
    """The dtypes that CUDA has for the tensors of a call, and the kernel that its error names.

    `copies_one`: of a tensor of one element, it only makes a copy, and has all dtypes. `of_first`:
    only the first tensor has the dtype, others have one of their own. `promotes`: the dtype is that
    of the two first arguments together.
    """

    dtypes: frozenset[torch.dtype]
    kernel: str
    copies_one: bool = False
    of_first: bool = False
    promotes: bool = False


def name_of(dtype: torch.dtype) -> str:
    """What PyTorch's errors call a dtype: "Long" for torch.int64."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.").capitalize()


def type_of(tensor: Tensor) -> str:
    """What C++ calls the type of a tensor, as errors that pass to Python have it.

    Python has a name such as torch.cuda.FloatTensor for dtypes of old only.
    """
    if tensor.dtype in _WITH_TENSOR_TYPE:
        return tensor.type()
    return f"{'CPU' if tensor.is_cpu else DEVICE_TYPE}{name_of(tensor.dtype)}Type"


def check_cudnn_dtype(dtype: torch.dtype, refusal: str) -> None:
    """Raise as cuDNN does if it does not compute with a dtype.

    Args:
        refusal: the error for integers, as which cuDNN can at least describe a tensor.
    """
    if dtype in (torch.int8, torch.uint8, torch.int32):
        raise RuntimeError(refusal)
    if not dtype.is_floating_point:
        raise RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {name_of(dtype)}")


def no_kernel(kernel: str, dtype: torch.dtype) -> NotImplementedError:
    """The error of a CUDA kernel that was not compiled for a dtype."""
    return NotImplementedError(_NO_KERNEL.format(kernel, name_of(dtype)))


# Dtypes for which CUDA has a kernel and the CPU has none: computed in a wider one, and rounded.
#
# `avg_pool3d` and Fourier transforms of float16, `histc` of integers: what a GPU computes must not
# end a program here. A kernel of CUDA computes a narrow dtype in a wider one and rounds once, and
# so does the host code here. The part before has the opposite.

Dtypes = Mapping[torch.dtype, torch.dtype]

_HALF = {torch.float16: torch.float32}
HALVES = {**_HALF, torch.bfloat16: torch.float32}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
# Integers of as many bits, for what is only moved.
_BITS = {
    **dict.fromkeys((*FLOAT8, torch.float8_e8m0fnu), torch.uint8),
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.complex32: torch.int32,
}
COMPLEX_HALF = {torch.complex32: torch.complex64}
INTEGERS_AS_DOUBLES = dict.fromkeys(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64
)
# What becomes of the dtype of a result, where the arguments were of this one.
_BACK = {
    torch.float16: {torch.float32: torch.float16, torch.complex64: torch.complex32},
    torch.bfloat16: {torch.float32: torch.bfloat16},
    torch.complex32: {
        torch.float32: torch.float16,
        torch.float64: torch.float16,  # these are outputs of the caller
        torch.complex64: torch.complex32,
        torch.complex128: torch.complex32,
    },
    **{dtype: {wide: dtype} for dtype, wide in INTEGERS_AS_DOUBLES.items()},
    torch.bool: {},
}


class Wider(NamedTuple):
    """The dtype in which each is computed where the first argument has it."""

    wider: Dtypes

    def applied(self, op: torch._ops.OpOverload, stock: HostCode) -> HostCode:
        """What calls `stock` with wider tensors if the first one is narrow."""
        schema = schema_of(op)

        def run(keys: Keys, *args: Any, **kwargs: Any) -> Any:
            narrow = args[0].dtype
            if narrow not in self.wider:
                return stock(keys, *args, **kwargs)
            dtypes = AfterRefusal(self.wider, _BACK[narrow])
            return _in_wider(stock, dtypes, schema, keys, args, kwargs)

        return run


class AfterRefusal(NamedTuple):
    """The same where PyTorch's kernel is asked first, which costs operators hardly anything.

    `wider` has what arguments become once the host's kernel has refused them, `back` what results
    become after it.
    """

    wider: Dtypes
    back: Dtypes

    def applied(self, op: torch._ops.OpOverload, stock: HostCode) -> HostCode:
        """`stock`, and wider tensors once it has refused."""
        return _asking_first(stock, partial(_in_wider, stock, self, schema_of(op)))


class Moved(NamedTuple):
    """Numbers are only moved, so that integers of as many bits do; one number, for float8 only."""

    one_number: bool = False

    def applied(self, op: torch._ops.OpOverload, stock: HostCode) -> HostCode:
        """`stock`, and bits once it has refused."""
        return _asking_first(
            stock, partial(_number_in_bits if self.one_number else _in_bits, stock)
        )


# Halves are among the arguments where a number or a tensor of no dimension makes them complex.
COMPLEX_HALVES = AfterRefusal({**COMPLEX_HALF, **_HALF}, _BACK[torch.complex32])


def host_code(op: torch._ops.OpOverload) -> HostCode | None:
    """What computes `op` on the host, or None where PyTorch's own kernel has all dtypes."""
    own = facts_of(op).host
    stock: HostCode = op._handle.redispatch_boxed
    if own is not None:
        stock = partial(own, stock)
    return widened(op, stock) or (None if own is None else stock)


def widened(op: torch._ops.OpOverload, stock: HostCode) -> HostCode | None:
    """What calls `stock` with wider tensors where it has to, or None where it has all dtypes."""
    wider = facts_of(op).wider
    return None if wider is None else wider.applied(op, stock)


def _asking_first(stock: HostCode, otherwise: HostCode) -> HostCode:
    """`stock`, and `otherwise` once it has refused: the first costs hardly anything."""

    def run(keys: Keys, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(keys, *args, **kwargs)
        except NotImplementedError as error:
            refusal = error  # having written nothing
        try:
            return otherwise(keys, args, kwargs)
        except NotImplementedError:  # which has no dtype for it either
            raise refusal from None

    return run


def _in_wider(
    stock: HostCode,
    dtypes: AfterRefusal,
    schema: Schema,
    keys: Keys,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `stock` with wider tensors and dtypes, and round its results or what it has written."""
    wider, back = dtypes

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(wider.get(leaf.dtype, leaf.dtype))
        return wider.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    # It is ours: torch-function modes of the user must not see how it computes.
    with torch._C.DisableTorchFunction():
        wide_args, wide_kwargs = tree_map(widen, (args, kwargs))
        results = stock(keys, *wide_args, **wide_kwargs)
        if not schema.written:
            return tree_map_only(Tensor, lambda x: x.to(back.get(x.dtype, x.dtype)), results)
        given, widened = schema.named(args, kwargs), schema.named(wide_args, wide_kwargs)
        outputs = []
        for position in schema.written:
            output, wide = (named[schema.names[position]] for named in (given, widened))
            output.resize_(wide.shape).copy_(wide.to(back.get(wide.dtype, wide.dtype)))
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _in_bits(stock: HostCode, keys: Keys, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `stock` with integers of the same bits, where it only moves them.

    An output has got its shape from the kernel that refused.
    """
    narrow = args[0].dtype
    bits = _BITS.get(narrow, narrow)

    def as_bits(tensor: Tensor) -> Tensor:
        return tensor.view(bits) if tensor.dtype == narrow else tensor

    with torch._C.DisableTorchFunction():
        host_args, host_kwargs = tree_map_only(Tensor, as_bits, (args, kwargs))
        result = stock(keys, *host_args, **host_kwargs)
        return result.view(narrow)


def _number_in_bits(
    stock: HostCode, keys: Keys, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`scatter` of one number: `stock` with its bits, if the tensor has a float8 dtype."""
    *others, number = args
    if others[0].dtype not in FLOAT8:
        return stock(keys, *args, **kwargs)  # which refuses
    with torch._C.DisableTorchFunction():
        bits = torch.tensor(number, device="cpu").to(others[0].dtype).view(torch.uint8).item()
    return _in_bits(stock, keys, (*others, bits), kwargs)
