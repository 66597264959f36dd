"""From a kernel's arguments to host arguments, under the device rules of real hardware.

All tensors of one operation lie on one device. A CPU tensor may take part only where it has no
dimensions, and never as something that is written to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from simgpu._relabel import DEVICE_TYPE, HOST, host_alias, relabel
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor
_NUMBERS = (int, float, complex)
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

    __slots__ = ("_alias", "_names", "_numbers_may_be_tensors", "_op", "_pointwise", "_written")

    def __init__(self, op: torch._ops.OpOverload) -> None:
        arguments = op._schema.arguments
        self._op = op
        self._names = [argument.name for argument in arguments]
        self._written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        # A wrapped number (the 2 of `torch.where(mask, x, 2)`) reaches Python as a plain number.
        self._numbers_may_be_tensors = {
            argument.name for argument in arguments if str(argument.type) in _TENSOR_TYPES
        }
        self._pointwise = torch.Tag.pointwise in op.tags
        self._alias = host_alias if sees_lazy_tensors(op) else _plain_alias

    def device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Index of the one device of all tensors; raises if they do not agree."""
        index = -1
        for tensor in tensors_in((*args, *kwargs.values())):
            found = tensor.get_device()
            if found < 0:
                if tensor.dim() == 0 and tensor.is_cpu:
                    continue
                self._raise_mismatch(args, kwargs)
            elif index < 0:
                index = found
            elif found != index:
                self._raise_mismatch(args, kwargs)
        for name in self._written:
            written = kwargs.get(name)
            if written is None and name in self._names[: len(args)]:
                written = args[self._names.index(name)]
            if any(tensor.is_cpu for tensor in tensors_in((written,))):
                self._raise_mismatch(args, kwargs)
        return index

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

    def _raise_mismatch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = [*zip(self._names, args, strict=False), *kwargs.items()]
        pairs = [(name, tensor) for name, value in named for tensor in tensors_in((value,))]
        devices = list(dict.fromkeys(tensor.device for _, tensor in pairs))
        if self._pointwise or not pairs:
            raise DeviceMismatchError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{devices[0]} and {devices[1]}!"
            )
        common = pairs[0][1].device
        name, tensor = next(pair for pair in pairs if pair[1].device != common)
        method = self._op._schema.name.removeprefix("aten::")
        raise DeviceMismatchError(
            f"Expected all tensors to be on the same device, but got {name} is on "
            f"{tensor.device}, different from other tensors on {common} (when checking argument "
            f"in method wrapper_{DEVICE_TYPE}_{method})"
        )


def _plain_alias(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_cpu else relabel(tensor, HOST)


def _number_as_tensor(number: complex, others: list[Any]) -> Tensor:
    """A 0-dim tensor that takes part in type promotion with `others` as the number would."""
    dtype = torch.result_type(torch.empty(()), number)
    kinds = [other for other in others if isinstance(other, Tensor)]
    if kinds:
        dtype = torch.result_type(max(kinds, key=Tensor.dim), number)
    return torch.scalar_tensor(number, dtype=dtype)
