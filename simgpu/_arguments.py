"""From a kernel's arguments to host arguments, under the device rules of real hardware.

All tensors of one operation lie on one device. A CPU tensor may take part only where it has no
dimensions, and never as something that is written to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from simgpu._native_functions import native_function
from simgpu._relabel import DEVICE_TYPE, HOST, host_alias, relabel
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor
_NUMBERS = (int, float, complex)
# One kernel here, another operator's kernel on CUDA: that one is named, with its arguments.
_COMPOSED_ON_CUDA: dict[str, tuple[str, dict[str, str]]] = {
    "_stack": ("cat", {}),
    "embedding": ("index_select", {"weight": "self", "indices": "index"}),
    "stack": ("cat", {}),
}
_TENSOR_TYPES = ("Tensor", "Optional[Tensor]")


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments, lists of tensors included, in order."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found.extend(item for item in value if isinstance(item, Tensor))
    return found


def sees_lazy_tensors(op: torch._ops.OpOverload) -> bool:
    """Whether `op` is handed lazily conjugated and negated tensors as they are.

    For all other operators, PyTorch materialises them first.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(op._name, key) for key in ("Conjugate", "Negative"))


class Arguments:
    """How one operator's arguments are read: which are written to, and how mistakes are named."""

    __slots__ = ("_alias", "_names", "_numbers_may_be_tensors", "_op", "_written")

    def __init__(self, op: torch._ops.OpOverload) -> None:
        arguments = op._schema.arguments
        self._op = op
        self._names = [argument.name for argument in arguments]
        self._written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        # A wrapped number (the 2 of `torch.where(mask, x, 2)`) reaches Python as a plain number.
        self._numbers_may_be_tensors = {
            argument.name for argument in arguments if str(argument.type) in _TENSOR_TYPES
        }
        self._alias = host_alias if sees_lazy_tensors(op) else _plain_alias

    def device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Index of the one device of all tensors; raises if they do not agree.

        -1 where there is none: for operators that make tensors.
        """
        index, strangers = -1, False
        for tensor in tensors_in((*args, *kwargs.values())):
            found = tensor.get_device()
            if index < 0:
                index = found
            strangers = strangers or found != index or found < 0
        if strangers:
            return self._device_among_strangers(args, kwargs)
        return index

    def _device_among_strangers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """`device` for tensors that are not all on the same simulated device."""
        named = [*zip(self._names, args, strict=False), *kwargs.items()]
        written = [pair for pair in named if pair[0] in self._written]
        read = [pair for pair in named if pair[0] not in self._written]
        pairs = [
            (name, tensor) for name, value in (*written, *read) for tensor in tensors_in((value,))
        ]
        operator = self._op._name.removeprefix("aten::")
        if operator == "convolution":
            self._check_convolution(pairs)
        if operator in _COMPOSED_ON_CUDA:
            operator, renamed = _COMPOSED_ON_CUDA[operator]
            pairs = [(renamed.get(name, name), tensor) for name, tensor in pairs]
        facts = native_function(operator)
        if facts.checks_devices:
            return self._common_device(pairs, operator, facts.structured)
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

    def _common_device(
        self, pairs: list[tuple[str, Tensor]], operator: str, structured: bool
    ) -> int:
        """The check in front of a CUDA kernel (aten/src/ATen/core/op_registration/adaption.h)."""
        op, _, overload = operator.partition(".")
        common = pairs[0][1].device
        for name, tensor in pairs:
            if tensor.device != common:
                method = op if structured else f"{overload}_{op}"
                raise DeviceMismatchError(
                    f"Expected all tensors to be on the same device, but got {name} is on "
                    f"{tensor.device}, different from other tensors on {common} (when checking "
                    f"argument in method wrapper_{DEVICE_TYPE}_{method})"
                )
        return pairs[0][1].get_device()

    def _iterator_device(self, pairs: list[tuple[str, Tensor]]) -> int:
        """The check within elementwise kernels, which let CPU numbers in (TensorIterator.cpp)."""
        on_device = [tensor for _, tensor in pairs if not tensor.is_cpu]
        if not on_device:
            return -1
        common = on_device[0].device
        for name, tensor in pairs:
            number = tensor.is_cpu and tensor.dim() == 0 and name not in self._written
            if tensor.device != common and not number:
                raise DeviceMismatchError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {common} and {tensor.device}!"
                )
        return on_device[0].get_device()

    def to_host(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """Host aliases in place of the device's tensors."""
        host_args = [self._value(value) for value in args]
        host_kwargs = {name: self._value(value) for name, value in kwargs.items()}
        for position, (name, value) in enumerate(zip(self._names, args, strict=False)):
            if isinstance(value, _NUMBERS) and name in self._numbers_may_be_tensors:
                host_args[position] = _number_as_tensor(value, host_args)
        for name, value in kwargs.items():
            if isinstance(value, _NUMBERS) and name in self._numbers_may_be_tensors:
                host_kwargs[name] = _number_as_tensor(value, host_args)
        return host_args, host_kwargs

    def _value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._alias(value)
        if isinstance(value, (tuple, list)):
            alias = self._alias
            return [alias(item) if isinstance(item, Tensor) else item for item in value]
        return value


def _plain_alias(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_cpu else relabel(tensor, HOST)


def _number_as_tensor(number: complex, others: list[Any]) -> Tensor:
    """A 0-dim tensor that takes part in type promotion with `others` as the number would."""
    dtype = torch.result_type(torch.empty(()), number)
    kinds = [other for other in others if isinstance(other, Tensor)]
    if kinds:
        dtype = torch.result_type(max(kinds, key=Tensor.dim), number)
    return torch.scalar_tensor(number, dtype=dtype)
