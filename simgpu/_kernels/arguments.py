"""From a kernel's arguments to host arguments, under the device rules of real hardware.

All tensors of one operation lie on one device. A CPU tensor may take part only where it has no
dimensions, and never as something that is written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from simgpu._kernels.native_functions import native_function
from simgpu._memory.host_aliases import SharedStorageAliases, shares_storage_with_another
from simgpu._naming import DEVICE_TYPE
from simgpu._native.dlpack_relabel import host_alias, relabel
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor
_NUMBERS = (int, float, complex)
# One kernel here, another operator's kernel on CUDA: that one is named, with its arguments.
_COMPOSED_ON_CUDA: dict[str, tuple[str, dict[str, str]]] = {
    "_stack": ("cat", {}),
    "embedding": ("index_select", {"weight": "self", "indices": "index"}),
    "stack": ("cat", {}),
}
_HOST_PREFIX = (
    "cpu_"  # arguments that lie on the host whatever the device (the sizes of a nested one)
)
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


def _sees_lazy_tensors(op: torch._ops.OpOverload) -> bool:
    """Whether `op` is handed lazily conjugated and negated tensors as they are.

    For all other operators, PyTorch materialises them first.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(op._name, key) for key in ("Conjugate", "Negative"))


class Arguments:
    """How one operator's arguments are read: which are written to, and how mistakes are named."""

    __slots__ = (
        "_has_outputs",
        "_names",
        "_op",
        "_overwritten",
        "_tensor_names",
        "_tensor_positions",
        "_written",
        "alias",
    )

    def __init__(self, op: torch._ops.OpOverload) -> None:
        arguments = op._schema.arguments
        self._op = op
        # How a device's tensor becomes a host tensor.
        self.alias = host_alias if _sees_lazy_tensors(op) else relabel
        self._names = [argument.name for argument in arguments]
        self._written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        # Kernels of lists do not look whether their tensors overlap, on CUDA neither.
        self._overwritten = {
            position: a.name
            for position, a in enumerate(arguments)
            if a.name in self._written and str(a.type) == "Tensor"
        }
        self._has_outputs = any(a.kwarg_only and a.name in self._written for a in arguments)
        tensors = [i for i, a in enumerate(arguments) if str(a.type) in _TENSOR_TYPES]
        self._tensor_positions = tensors
        self._tensor_names = {self._names[position] for position in tensors}

    def read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, list[Any], dict[str, Any]]:
        """The one device of all tensors, and the arguments with host aliases in place of them.

        The device is -1 where there is none: for operators that make tensors. Raises
        DeviceMismatchError where the tensors do not agree.
        """
        alias = self.alias
        if self._overwritten and self._overlap(args, kwargs):
            alias = SharedStorageAliases()
        index, mixed, host_args = self._aliases(args, alias)
        host_kwargs = kwargs
        if kwargs:
            found, strange, aliases = self._aliases(kwargs.values(), alias)
            mixed = mixed or strange or (found >= 0 and found != index >= 0)
            index = found if index < 0 else index
            host_kwargs = dict(zip(kwargs, aliases, strict=True))
        if mixed:
            index = self._device_of_mixed_tensors(args, kwargs)
        # A wrapped number (the 2 of `torch.where(mask, x, 2)`) reaches Python as a plain number.
        for position in self._tensor_positions:
            if position < len(args) and isinstance(args[position], _NUMBERS):
                host_args[position] = _number_as_tensor(args[position], host_args)
        for name, value in kwargs.items():
            if isinstance(value, _NUMBERS) and name in self._tensor_names:
                host_kwargs[name] = _number_as_tensor(value, host_args)
        return index, host_args, host_kwargs

    def _overlap(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a tensor that is written to stands on the storage of another argument."""
        values = (*args, *kwargs.values()) if kwargs else args
        for position, name in self._overwritten.items():
            target = args[position] if position < len(args) else kwargs.get(name)
            if isinstance(target, Tensor) and shares_storage_with_another(target, values):
                return True
        return False

    def _aliases(
        self, values: Iterable[Any], alias: Callable[[Tensor], Tensor]
    ) -> tuple[int, bool, list[Any]]:
        """Device of the tensors, whether any lies elsewhere, and the values with host aliases."""
        index, mixed = -1, False
        aliases: list[Any] = []
        for value in values:
            if isinstance(value, Tensor):
                found = value.get_device()
                if found < 0:  # on the CPU
                    mixed = True
                    aliases.append(value)
                    continue
                mixed = mixed or found != index >= 0
                index = found if index < 0 else index
                aliases.append(alias(value))
            elif isinstance(value, (tuple, list)):
                found, strange, inner = self._aliases(value, alias)
                mixed = mixed or strange or (found >= 0 and found != index >= 0)
                index = found if index < 0 else index
                aliases.append(inner)
            else:
                aliases.append(value)
        return index, mixed, aliases

    def _device_of_mixed_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
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
                op = f"{op}_out" if self._has_outputs else op
                method = f"{op}_{overload}".removesuffix("_") if structured else f"{overload}_{op}"
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
            number = number or (tensor.is_cpu and name.startswith(_HOST_PREFIX))
            if tensor.device != common and not number:
                raise DeviceMismatchError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {common} and {tensor.device}!"
                )
        return on_device[0].get_device()


def _number_as_tensor(number: complex, others: list[Any]) -> Tensor:
    """A 0-dim tensor that takes part in type promotion with `others` as the number would."""
    dtype = torch.result_type(torch.empty(()), number)
    kinds = [other for other in others if isinstance(other, Tensor)]
    if kinds:
        dtype = torch.result_type(max(kinds, key=Tensor.dim), number)
    return torch.scalar_tensor(number, dtype=dtype)
