"""Turn the arguments of a call into CPU arguments: each device tensor becomes a host alias.

On the way the one device of all tensors is found, and tensors that share memory with one that is
written to keep sharing it. Where the tensors lie on several devices, `mixed_devices` decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from simgpu._kernels.mixed_devices import DeviceRules
from simgpu._memory.host_aliases import (
    SharedStorageAliases,
    host_empty,
    shares_storage_with_another,
)
from simgpu._native.dlpack_relabel import host_alias, relabel
from simgpu._runtime.launch import HOST_KEYS
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor
NUMBERS = (int, float, complex)
_TENSOR_TYPES = ("Tensor", "Optional[Tensor]")
_scalar_tensor = torch.ops.aten.scalar_tensor.default._handle.redispatch_boxed
_CPU = torch.device("cpu")
_LIST_TYPES = ("List[Tensor]", "List[Optional[Tensor]]")


def _sees_lazy_tensors(op: torch._ops.OpOverload) -> bool:
    """Whether `op` is handed lazily conjugated and negated tensors as they are.

    For all other operators, PyTorch materialises them first.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(op._name, key) for key in ("Conjugate", "Negative"))


class Arguments:
    """Reads the arguments of one operator's calls."""

    __slots__ = (
        "_device_rules",
        "_first_position",
        "_list_positions",
        "_names_with_tensors",
        "_overwritten",
        "_tensor_names",
        "_tensor_positions",
        "alias",
    )

    def __init__(self, op: torch._ops.OpOverload) -> None:
        arguments = op._schema.arguments
        # How a device's tensor becomes a host tensor.
        self.alias = host_alias if _sees_lazy_tensors(op) else relabel
        self._device_rules = DeviceRules(op)
        # Kernels of lists do not look whether their tensors overlap, on CUDA neither.
        self._overwritten = {
            position: a.name
            for position, a in enumerate(arguments)
            if a.alias_info and a.alias_info.is_write and str(a.type) == "Tensor"
        }
        tensors = [i for i, a in enumerate(arguments) if str(a.type) in _TENSOR_TYPES]
        self._tensor_positions = tensors
        self._tensor_names = {arguments[position].name for position in tensors}
        self._list_positions = [i for i, a in enumerate(arguments) if str(a.type) in _LIST_TYPES]
        with_tensors = [i for i, a in enumerate(arguments) if "Tensor" in str(a.type)]
        self._names_with_tensors = {arguments[position].name for position in with_tensors}
        # Where to look for the device; nowhere if there are arguments of other kinds.
        simple = {*tensors, *self._list_positions}
        self._first_position = with_tensors[0] if simple and simple == {*with_tensors} else None

    def read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, list[Any], dict[str, Any]]:
        """The one device of all tensors, and the arguments with host aliases in place of them.

        The device is -1 where no tensor lies on one, as for operators that make tensors. Raises
        DeviceMismatchError where the tensors may not take part in one operation.
        """
        try:
            plain = self._read_plain(args, kwargs)
            if plain is not None:
                return plain
            alias = self.alias
            if self._overwritten and self._overlap(args, kwargs):
                alias = SharedStorageAliases()
            return self._read_all(args, kwargs, alias)
        except DeviceMismatchError:  # of a tensor on a GPU, perhaps, without its words
            self._device_rules.device_of_mixed_tensors(args, kwargs)
            raise

    def read_copies(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments with copies in place of tensors, for an output that has to grow.

        None where no tensor shares memory with one that is written to; copies share it likewise.
        """
        if not self._overlap(args, kwargs):
            return None
        return self._read_all(args, kwargs, SharedStorageAliases(copy=True))[1:]

    def _read_all(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], alias: Callable[[Tensor], Tensor]
    ) -> tuple[int, list[Any], dict[str, Any]]:
        index, mixed, host_args = self._aliases(args, alias)
        host_kwargs = kwargs
        if kwargs:
            found, strange, aliases = self._aliases(kwargs.values(), alias)
            mixed = mixed or strange or (found >= 0 and found != index >= 0)
            index = found if index < 0 else index
            host_kwargs = dict(zip(kwargs, aliases, strict=True))
        if mixed:
            moved = self._device_rules.with_numbers_moved(args, kwargs)
            if moved is not None:
                return self._read_all(*moved, alias)
            index = self._device_rules.device_of_mixed_tensors(args, kwargs)
        # A wrapped number (the 2 of `torch.where(mask, x, 2)`) reaches Python as a plain number.
        for position in self._tensor_positions:
            if position < len(args) and isinstance(args[position], NUMBERS):
                host_args[position] = number_as_tensor(args[position], host_args)
        for name, value in kwargs.items():
            if isinstance(value, NUMBERS) and name in self._tensor_names:
                host_kwargs[name] = number_as_tensor(value, host_args)
        return index, host_args, host_kwargs

    def _read_plain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, list[Any], dict[str, Any]] | None:
        """The same for numbers and tensors of one device; None for anything else.

        By name there may be a single tensor, as in `torch.mul(x, 2, out=z)`, and no lists of them.
        """
        position, count = self._first_position, len(args)
        if position is None or position >= count:
            return None
        first: Any = args[position]
        if not isinstance(first, Tensor):
            first = first[0] if isinstance(first, (list, tuple)) and first else None
            if not isinstance(first, Tensor):
                return None
        if self._overwritten and self._overlap(args, kwargs):
            return None
        index, alias, host_args = first.get_device(), self.alias, list(args)
        if index < 0:
            return None
        numbers = []
        for position in self._tensor_positions:
            if position < count and (tensor := args[position]) is not None:
                if isinstance(tensor, Tensor):  # asked first: not to be a number takes longer
                    if tensor.get_device() != index:
                        return None
                    host_args[position] = alias(tensor)
                elif isinstance(tensor, NUMBERS):
                    numbers.append(position)
                else:
                    return None
        for position in self._list_positions:  # a list given by position has no default
            for tensor in args[position]:
                if not isinstance(tensor, Tensor) or tensor.get_device() != index:
                    return None
            host_args[position] = [*map(alias, args[position])]
        for name in kwargs and self._names_with_tensors.intersection(kwargs):
            tensor = kwargs[name]
            if not isinstance(tensor, Tensor) or tensor.get_device() != index:
                return None
            kwargs = {**kwargs, name: alias(tensor)}
        for position in numbers:
            host_args[position] = number_as_tensor(args[position], host_args)
        return index, host_args, kwargs

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


def number_as_tensor(number: complex, others: list[Any]) -> Tensor:
    """A 0-dim tensor that takes part in type promotion with `others` as the number would."""
    kinds = [other for other in others if isinstance(other, Tensor)]
    kind = max(kinds, key=Tensor.dim) if kinds else torch.empty((), device="cpu")
    return torch.scalar_tensor(number, dtype=torch.result_type(kind, number), device="cpu")


def kept_number(number: complex, other: Tensor) -> Tensor:
    """`number_as_tensor` beside one other tensor, for a kernel that can only read it.

    The same tensor serves later calls. A zero may have a sign, which no key tells: none is kept.
    """
    if not number or isinstance(number, complex):
        return number_as_tensor(number, [other])
    return _kept_number(number, other.dtype, torch.get_default_dtype())


@functools.lru_cache(maxsize=256, typed=True)
def _kept_number(number: float, beside: torch.dtype, _: torch.dtype) -> Tensor:
    kind = host_empty(0, beside)
    dtype = torch.result_type(kind, number)
    return _scalar_tensor(HOST_KEYS, number, dtype=dtype, device=_CPU)  # type: ignore[no-any-return]
