"""On which devices tensors of one call may lie, and the errors that CUDA raises otherwise.

All tensors of one operation lie on one device. A CPU tensor may take part only where it has no
dimensions, and never as something that is written to. The errors have the words of the CUDA kernel
that would refuse. An operator that PyTorch composes of others on CUDA has no kernel there:
those others refuse, or take tensors of several devices (`torch.linspace` of two numbers). The same
rules hold for sparse and nested tensors, whose kernels have other names.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._kernels import mixed_sparse
from simgpu._kernels.native_functions import native_function
from simgpu._kernels.overloads import PythonKernel
from simgpu._naming import DEVICE_TYPE
from simgpu._runtime.launch import HOST_KEYS
from simgpu._runtime.operators import tensors_in
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor
# One kernel here, another operator's kernel on CUDA: that one is named.
_COMPOSED_ON_CUDA = {
    "_stack": "cat",
    "_unsafe_index.Tensor": "index.Tensor",
    "_unsafe_index_put": "_index_put_impl_",
    "convolution": "cudnn_convolution",
    "index_put": "_index_put_impl_",
    "index_put_": "_index_put_impl_",
}
# Arguments that lie on the host whatever the device (the sizes of a nested tensor).
_HOST_PREFIX = "cpu_"

# Elementwise operators whose CUDA kernels take no CPU number for these arguments, though their
# CPU kernels would: with the words of the kernel, or with none where the iterator refuses.
_ADDCMUL = (
    "CPU Scalar support for {} argument is not supported when calling addcmul on CUDA tensors."
)
_POINTER = "argument {}: expected a CUDA device but found cpu"  # of native/cuda/Loops.cuh
_NO_NUMBERS: dict[str, dict[str, str]] = {
    "addcdiv": {
        "self": _POINTER.format(1),
        "tensor1": _POINTER.format(2),
        "tensor2": _POINTER.format(3),
    },
    "addcmul": {
        "self": _ADDCMUL.format("self"),
        "tensor1": _ADDCMUL.format("tensor1")
        + " However, CPU Scalar support for tensor2 is supported, please swap your tensor1 and "
        "tensor2 terms.",
    },
    "binary_cross_entropy": {"self": "", "target": ""},
    "binomial": {"count": "", "prob": ""},
    "index_fill": {"index": ""},
    "lerp": {"self": _POINTER.format(1), "end": _POINTER.format(2)},
    "masked_fill": {"mask": ""},
    "mse_loss": {"self": _POINTER.format(1), "target": _POINTER.format(2)},
    "smooth_l1_loss": {"self": _POINTER.format(1), "target": _POINTER.format(2)},
}


# Operators that compare two arguments before all others, and name both devices; by the kind of
# their tensors.
_MASK_WORDS = "expected self and mask to be on the same device, but got mask on {} and self on {}"
_PAIRS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("", "masked_fill"): ("mask", "self", _MASK_WORDS),
    ("NestedTensor", "masked_fill"): ("mask", "self", _MASK_WORDS),
    ("SparseCsr", "triangular_solve"): (
        "self",
        "A",
        "Expected b and A to be on the same device, but found b on {} and A on {} instead.",
    ),
}


# Numbers of any device that an operator brings along: `where` by a copy, the others by reading them
# (ATen/native/TensorCompare.cpp, Fill.cpp, cuda/Indexing.cu).
_MOVED_NUMBERS = {
    "fill": ("value",),
    "masked_fill": ("value",),
    "where": ("condition", "self", "other"),
}


# What only copies, or looks at no memory: its tensors may lie anywhere.
_ACROSS = {
    "NestedTensor": ("is_same_size",),
    "Sparse": ("copy_sparse_to_sparse_",),
}


class Composed(Exception):
    """The tensors of a call lie on several devices, and CUDA has no kernel that would say so."""


def composed_where_mixed(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, or PyTorch's composite of `op` where tensors of several devices take part."""
    if sum("Tensor" in str(argument.type) for argument in op._schema.arguments) < 2 and not any(
        "List[" in str(argument.type) for argument in op._schema.arguments
    ):
        return kernel  # one tensor lies on one device

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except Composed:
            pass
        return op._handle.redispatch_boxed(HOST_KEYS, *args, **kwargs)

    return run


class DeviceRules:
    """Where one operator computes when its tensors lie on several devices, or why it does not.

    `kind` is that of the kernel: "" for dense tensors, "Sparse", "SparseCsr" or "NestedTensor".
    """

    __slots__ = ("_base", "_has_outputs", "_kind", "_names", "_operator", "_written")

    def __init__(self, op: torch._ops.OpOverload, kind: str = "") -> None:
        arguments = op._schema.arguments
        self._kind = kind
        self._operator = op._name.removeprefix("aten::")
        self._base = self._operator.partition(".")[0].removesuffix("_")
        self._names = [argument.name for argument in arguments]
        self._written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        self._has_outputs = any(a.kwarg_only and a.name in self._written for a in arguments)

    def with_numbers_moved(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments with numbers of other devices brought along, if the operator does that."""
        names = _MOVED_NUMBERS.get(self._base)
        if names is None:
            return None
        named = {**dict(zip(self._names, args, strict=False)), **kwargs}
        if self._base == "masked_fill" and named["self"].is_cpu:
            return None
        home = next(
            (t.device for t in tensors_in(*named.values()) if not t.is_cpu), torch.device("cpu")
        )
        if self._written:
            home = next(t.device for name in self._written for t in tensors_in(named[name]))
        near = {
            name: named[name].to(home if self._base == "where" else "cpu")
            for name in names
            if isinstance(named.get(name), Tensor)
            and _is_number(named[name])
            and named[name].device not in (home, torch.device("cpu"))
        }
        if not near:
            return None
        moved = [near.get(name, value) for name, value in zip(self._names, args, strict=False)]
        return tuple(moved), {name: near.get(name, value) for name, value in kwargs.items()}

    def device_of_mixed_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The device to compute on, where the tensors are not all on one simulated device.

        Raises DeviceMismatchError where CUDA would.
        """
        named = [*zip(self._names, args, strict=False), *kwargs.items()]
        written = [pair for pair in named if pair[0] in self._written]
        read = [pair for pair in named if pair[0] not in self._written]
        pairs = [
            (name, tensor) for name, value in (*written, *read) for tensor in tensors_in(value)
        ]
        operator = self._operator
        if operator == "convolution":
            self._check_convolution(pairs)
            # cuDNN multiplies, and then an elementwise kernel adds the bias.
            self._common_device(pairs[:2], _COMPOSED_ON_CUDA[operator], False)
            return self._iterator_device(pairs)
        self._check_pair(dict(pairs))
        operator = _COMPOSED_ON_CUDA.get(operator, operator)
        facts = native_function(operator)
        if facts.composed and not self._kind:
            raise Composed
        if facts.checks_devices:
            return self._common_device(pairs, operator, facts.structured and not self._kind)
        mixed_sparse.check(self._kind, self._base, dict(pairs))
        return self._iterator_device(pairs)

    def _check_convolution(self, pairs: list[tuple[str, Tensor]]) -> None:
        """Convolutions name the types of both tensors (aten/src/ATen/native/Convolution.cpp)."""
        (_, input), (_, weight), *rest = pairs
        for name, tensor in [("weight", weight), *((name, tensor) for name, tensor in rest)]:
            if tensor.device.type != input.device.type:
                raise DeviceMismatchError(
                    f"Input type ({input.type()}) and {name} type ({tensor.type()}) should be "
                    "the same"
                )

    def _check_pair(self, named: dict[str, Tensor]) -> None:
        """The question that `_PAIRS` has for this operator."""
        one, other, words = _PAIRS.get((self._kind, self._base), ("", "", ""))
        if words and named[one].device != named[other].device:
            raise DeviceMismatchError(words.format(named[one].device, named[other].device))
        if self._base == "masked_fill" and named["self"].is_cpu:
            raise DeviceMismatchError("masked_fill_: Expected inputs to be on same device")

    def _common_device(
        self, pairs: list[tuple[str, Tensor]], operator: str, structured: bool
    ) -> int:
        """The check in front of a CUDA kernel (aten/src/ATen/core/op_registration/adaption.h)."""
        op, _, overload = operator.partition(".")
        common = pairs[0][1].device
        for name, tensor in pairs:
            if tensor.device != common:
                op = f"{op}_out" if self._has_outputs else op
                method = f"{op}_{overload}".removesuffix("_") if structured else f"{overload}_{op}"
                raise DeviceMismatchError(
                    f"Expected all tensors to be on the same device, but got {name} is on "
                    f"{tensor.device}, different from other tensors on {common} (when checking "
                    f"argument in method wrapper_{self._kind}{DEVICE_TYPE}_{method})"
                )
        return pairs[0][1].get_device()

    def _iterator_device(self, pairs: list[tuple[str, Tensor]]) -> int:
        """The check within elementwise kernels, which let CPU numbers in (TensorIterator.cpp)."""
        on_device = [tensor for _, tensor in pairs if not tensor.is_cpu]
        if not on_device:
            return -1
        if self._operator in _ACROSS.get(self._kind, ()):
            return on_device[0].get_device()
        common = on_device[0].device
        no_numbers = _NO_NUMBERS.get(self._operator.partition(".")[0].removesuffix("_"), {})
        for name, tensor in pairs:
            number = tensor.is_cpu and _is_number(tensor) and name not in self._written
            if number and no_numbers.get(name):
                raise DeviceMismatchError(no_numbers[name].format(device=common))
            number = number and name not in no_numbers
            number = number or (tensor.is_cpu and name.startswith(_HOST_PREFIX))
            if tensor.device != common and not number:
                raise DeviceMismatchError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {common} and {tensor.device}!"
                )
        return on_device[0].get_device()


def _is_number(tensor: Tensor) -> bool:
    """Whether a tensor takes part as a number: it has no dimensions, and is not sparse."""
    return not tensor.dim() and tensor.layout is torch.strided
