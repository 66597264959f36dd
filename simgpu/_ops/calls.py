"""One call of an operator: its schema, its arguments on the host, and errors for wrong devices.

The arguments are read once: that finds the device that all tensors are on, and gives tensors that
share memory host aliases that share it too. Where the tensors are on several devices, the rules of
CUDA below decide.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import refused_dtype, tensors_in
from simgpu._memory.ownership import (
    SharedStorageAliases,
    adopt_all,
    host_empty,
    shares_storage_with_another,
)
from simgpu._native.relabel import host_alias, relabel
from simgpu._ops.table import Layout, PythonKernel, facts_of
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor

# Read an operator's CUDA kernel from PyTorch's native_functions.yaml, for the words of errors.
#
# The table comes with PyTorch (torchgen's native_functions.yaml). It is read when the first error
# of this kind is raised, never before.


class NativeFunction(NamedTuple):
    """Facts about an operator, by its name and overload such as "index_select" or "add.out"."""

    structured: bool  # has a structured kernel, whose wrapper is named without the overload
    checks_devices: bool  # the wrapper compares devices; otherwise the kernel's iterator does
    composed: bool  # of other operators, on CUDA too: no wrapper and no kernel of its own


@functools.cache
def _entries() -> dict[str, str]:
    """The entries of the table, by name; none where PyTorch comes without it."""
    try:
        import torchgen  # type: ignore[import-untyped]

        path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
        text = path.read_text(encoding="utf-8")
    except (ImportError, OSError):
        return {}
    entries = re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]
    return {entry.partition("(")[0]: entry for entry in entries}


def native_function(name: str) -> NativeFunction:
    """Facts about operator `name`; a plain kernel's where PyTorch has no entry."""
    entry = _entries().get(name, "")
    return NativeFunction(
        structured="structured" in entry,
        checks_devices="device_check: NoCheck" not in entry,
        composed="CompositeExplicitAutograd" in entry
        and "structured" not in entry
        and re.search(r"^    [\w, ]*\bCUDA\b", entry, re.MULTILINE) is None,
    )


# Find an operator of aten by its name, and register kernels with PyTorch.


def overload(name: str) -> torch._ops.OpOverload:
    """The operator of aten that is named like "relu" or, with its overload, "add.Tensor"."""
    packet, _, overload_name = name.partition(".")
    found: torch._ops.OpOverload = getattr(
        getattr(torch.ops.aten, packet), overload_name or "default"
    )
    return found


def register_kernels(
    key: str, kernels: Iterable[tuple[str, PythonKernel]], *, with_keyset: bool = False
) -> torch.library.Library:
    """Register `kernels` of aten, (name, kernel) each, under the dispatch key named `key`.

    The registrations last as long as the returned library. With `with_keyset` a kernel is handed
    the dispatch keys of the call as its first argument.
    """
    library = torch.library.Library("aten", "IMPL", key)  # type: ignore[no-untyped-call]
    for name, kernel in kernels:
        library.impl(  # type: ignore[no-untyped-call]
            name, kernel, key, with_keyset=with_keyset, allow_override=True
        )
    return library


# What an operator's schema says about the kernel that it needs.
#
# A schema is PyTorch's own declaration, such as `add_.Tensor(Tensor(a!) self, Tensor other, *,
# Scalar alpha=1) -> Tensor(a!)`: the mark `a!` says that `self` is written to and is the result.


class Schema:
    """Facts about the arguments and results of one operator; positions count from 0."""

    def __init__(self, op: torch._ops.OpOverload) -> None:
        arguments, returns = op._schema.arguments, op._schema.returns
        self.names = [argument.name for argument in arguments]
        self.types = [str(argument.type) for argument in arguments]
        self.written = [
            i for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write
        ]
        self.written_names = {self.names[i] for i in self.written}
        self.outputs = [self.names[i] for i in self.written if arguments[i].kwarg_only]
        self.tensors = [i for i, type_ in enumerate(self.types) if "Tensor" in type_]
        self._none_optional = all(self.types[i] == "Tensor" for i in self.tensors)
        self._returns = [str(returned.type) for returned in returns]
        self._is_nested = "nested" in op._name

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by their names."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def makes_one_of(self, count: int) -> bool:
        """Whether the first `count` arguments are the only tensors, and a new one the only result.

        A nested tensor as the result would have to be put together of its parts.
        """
        is_plain = self._none_optional and self._returns == ["Tensor"] and not self._is_nested
        return is_plain and self.tensors == [*range(count)]

    def is_binary_in_place(self) -> bool:
        """Whether the first two arguments are the only tensors, and the first is the result."""
        one_result = self.written == [0] and len(self._returns) == 1
        return one_result and self._none_optional and self.tensors == [0, 1]

    def is_binary_with_output(self) -> bool:
        """Whether the first two arguments and `out` are the only tensors."""
        last = len(self.names) - 1
        return self.tensors == [0, 1, last] and self._none_optional and self.outputs == ["out"]


@functools.cache
def schema_of(op: torch._ops.OpOverload) -> Schema:
    return Schema(op)


# On which devices tensors of one call may be, and the errors that CUDA raises otherwise.
#
# All tensors of one operation are on one device. A CPU tensor may take part only where it has no
# dimensions, and never as something that is written to. The errors have the words of the CUDA
# kernel that would refuse. An operator that PyTorch composes of others on CUDA has no kernel there:
# those others refuse, or take tensors of several devices (`torch.linspace` of two numbers). The
# same rules hold for sparse and nested tensors, whose kernels have other names.

# Arguments that are on the host whatever the device (the sizes of a nested tensor).
_HOST_PREFIX = "cpu_"


class Composed(Exception):
    """The tensors of a call are on several devices, and CUDA has no kernel that would raise."""


def composed_where_refused(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, or PyTorch's composite of `op` where that takes more than the host's whole code.

    It takes tensors of several devices, and dtypes that the parts have on CUDA, and their words.
    """
    compose = op._handle.redispatch_boxed
    of_lists = op._name.startswith("aten::_foreach_")  # CUDA has kernels for these

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except Composed:
            pass
        except NotImplementedError as error:
            if of_lists or not refused_dtype(error):
                raise
        return compose(HOST_KEYS, *args, **kwargs)

    return run


class DeviceRules:
    """Where one operator computes when its tensors are on several devices, or why it does not.

    What a row says about numbers applies to tensors of every layout.
    """

    __slots__ = ("_base", "_kind", "_op", "_operator", "_schema")

    def __init__(self, op: torch._ops.OpOverload, layout: Layout = "") -> None:
        self._op, self._kind, self._schema = op, layout, schema_of(op)
        self._operator = op._name.removeprefix("aten::")
        self._base = self._operator.partition(".")[0].removesuffix("_")

    def with_numbers_moved(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments with numbers of other devices brought along, if the operator does that."""
        names = facts_of(self._op).moved_numbers
        if not names:
            return None
        named = self._schema.named(args, kwargs)
        if self._base == "masked_fill" and named["self"].is_cpu:
            return None
        home = next(
            (t.device for t in tensors_in(*named.values()) if not t.is_cpu), torch.device("cpu")
        )
        if self._schema.written:
            written = self._schema.written_names
            home = next(t.device for name in written for t in tensors_in(named[name]))
        near = {
            name: named[name].to(home if self._base == "where" else "cpu")
            for name in names
            if isinstance(named.get(name), Tensor)
            and _is_number(named[name])
            and named[name].device not in (home, torch.device("cpu"))
        }
        if not near:
            return None
        moved = zip(self._schema.names, args, strict=False)
        by_name = {name: near.get(name, value) for name, value in kwargs.items()}
        return tuple(near.get(name, value) for name, value in moved), by_name

    def device_of_mixed_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The device to compute on, where the tensors are not all on one simulated device.

        Raises DeviceMismatchError where CUDA would.
        """
        written = self._schema.written_names
        named = self._schema.named(args, kwargs)
        order = sorted(named.items(), key=lambda pair: pair[0] not in written)
        pairs = [(name, tensor) for name, value in order for tensor in tensors_in(value)]
        operator = self._operator
        if operator == "convolution":
            self._check_convolution(pairs)
            # cuDNN multiplies, and then an elementwise kernel adds the bias.
            self._common_device(pairs[:2], facts_of(self._op).named_as, False)
            return self._iterator_device(pairs)
        self._check_pair(dict(pairs))
        operator = facts_of(self._op).named_as or operator
        cudas = native_function(operator)
        if cudas.composed and not self._kind:
            raise Composed
        if cudas.checks_devices:
            return self._common_device(pairs, operator, cudas.structured and not self._kind)
        mixed = facts_of(self._op, self._kind).mixed
        if mixed is not None:
            mixed(dict(pairs))
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
        """The question about two arguments that the operator's row has."""
        one, other, words = facts_of(self._op, self._kind).same_device or ("", "", "")
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
                op = f"{op}_out" if self._schema.outputs else op
                method = f"{op}_{overload}".removesuffix("_") if structured else f"{overload}_{op}"
                raise DeviceMismatchError(
                    f"Expected all tensors to be on the same device, but got {name} is on "
                    f"{tensor.device}, different from other tensors on {common} (when checking "
                    f"argument in method wrapper_{self._kind}{DEVICE_TYPE}_{method})"
                )
        return pairs[0][1].get_device()

    def _iterator_device(self, pairs: list[tuple[str, Tensor]]) -> int:
        """The check within elementwise kernels, which accept CPU numbers (TensorIterator.cpp)."""
        on_device = [tensor for _, tensor in pairs if not tensor.is_cpu]
        if not on_device:
            return -1
        if facts_of(self._op, self._kind).across:
            return on_device[0].get_device()
        common = on_device[0].device
        no_numbers, written = facts_of(self._op).no_cpu_numbers, self._schema.written_names
        for name, tensor in pairs:
            number = tensor.is_cpu and _is_number(tensor) and name not in written
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


NUMBERS = (int, float, complex)
_TENSOR_TYPES = ("Tensor", "Optional[Tensor]")
_scalar_tensor = torch.ops.aten.scalar_tensor.default._handle.redispatch_boxed
_CPU = torch.device("cpu")
_LIST_TYPES = ("List[Tensor]", "List[Optional[Tensor]]")


class Arguments:
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
        schema = schema_of(op)
        names, types = schema.names, schema.types
        # How a device's tensor becomes a host tensor. Few operators are handed lazily conjugated
        # and negated tensors as they are; for all others PyTorch materialises them first.
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        sees_lazy = any(has_kernel(op._name, key) for key in ("Conjugate", "Negative"))
        self.alias = host_alias if sees_lazy else relabel
        self._device_rules = DeviceRules(op)
        # Kernels of lists do not look whether their tensors overlap, on CUDA neither.
        self._overwritten = {i: names[i] for i in schema.written if types[i] == "Tensor"}
        self._tensor_positions = [i for i in schema.tensors if types[i] in _TENSOR_TYPES]
        self._tensor_names = {names[i] for i in self._tensor_positions}
        self._list_positions = [i for i in schema.tensors if types[i] in _LIST_TYPES]
        self._names_with_tensors = {names[i] for i in schema.tensors}
        # Where to look for the device; nowhere if there are arguments of other kinds.
        simple = {*self._tensor_positions, *self._list_positions} == {*schema.tensors}
        self._first_position = schema.tensors[0] if simple and schema.tensors else None

    def read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, list[Any], dict[str, Any]]:
        """The one device of all tensors, and the arguments with host aliases in place of them.

        The device is -1 where no tensor is on one, as for operators that make tensors. Raises
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
            try:
                self._device_rules.device_of_mixed_tensors(args, kwargs)
            except DeviceMismatchError as error:
                raise error from None  # a traceback shows it once
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
        index, mixed, aliases = self._aliases((*args, *kwargs.values()), alias)
        host_args = aliases[: len(args)]
        host_kwargs = dict(zip(kwargs, aliases[len(args) :], strict=True))
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
        """Whether a tensor that is written to shares the storage of another argument."""
        values = (*args, *kwargs.values()) if kwargs else args
        for position, name in self._overwritten.items():
            target = args[position] if position < len(args) else kwargs.get(name)
            if isinstance(target, Tensor) and shares_storage_with_another(target, values):
                return True
        return False

    def _aliases(
        self, values: Iterable[Any], alias: Callable[[Tensor], Tensor]
    ) -> tuple[int, bool, list[Any]]:
        """The device index, whether devices differ, and the values with host aliases of tensors."""
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

    The same tensor serves later calls. A zero may have a sign, which no key shows: none is kept.
    """
    if not number or isinstance(number, complex):
        return number_as_tensor(number, [other])
    return _kept_number(number, other.dtype, torch.get_default_dtype())


@functools.lru_cache(maxsize=256, typed=True)
def _kept_number(number: float, beside: torch.dtype, _: torch.dtype) -> Tensor:
    kind = host_empty(0, beside)
    dtype = torch.result_type(kind, number)
    return _scalar_tensor(HOST_KEYS, number, dtype=dtype, device=_CPU)  # type: ignore[no-any-return]


# From the results of a host kernel, the arguments of the call and the device's index to what the
# device's kernel returns.
ResultPicker = Callable[[Any, tuple[Any, ...], dict[str, Any], int], Any]


def result_picker(op: torch._ops.OpOverload) -> ResultPicker:
    """For every result of `op`: the argument that it aliases, or a fresh tensor to adopt."""
    schema = op._schema
    where: list[str | None] = []
    for returned in schema.returns:
        aliased = returned.alias_info.before_set if returned.alias_info else None
        names = [
            a.name for a in schema.arguments if a.alias_info and aliased == a.alias_info.before_set
        ]
        where.append(names[0] if names else None)
    positions = {argument.name: position for position, argument in enumerate(schema.arguments)}

    def argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return kwargs[name] if name in kwargs else args[positions[name]]

    def pick(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Any:
        if not where:
            return None
        if len(where) == 1:
            name = where[0]
            return adopt_all(result, index) if name is None else argument(name, args, kwargs)
        return tuple(
            adopt_all(value, index) if name is None else argument(name, args, kwargs)
            for name, value in zip(where, result, strict=True)
        )

    return pick
