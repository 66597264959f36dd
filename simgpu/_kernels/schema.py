"""What an operator's schema says about the kernel that it needs.

A schema is PyTorch's own declaration, such as `add_.Tensor(Tensor(a!) self, Tensor other, *,
Scalar alpha=1) -> Tensor(a!)`: the mark `a!` says that `self` is written to and is the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._memory.ownership import adopt_all

# From the results of a host kernel, the arguments of the call and the device's index to what the
# device's kernel returns.
ResultPicker = Callable[[Any, tuple[Any, ...], dict[str, Any], int], Any]


class Schema:
    """Facts about the arguments and results of one operator; positions count from 0."""

    def __init__(self, op: torch._ops.OpOverload) -> None:
        arguments, returns = op._schema.arguments, op._schema.returns
        self.names = [argument.name for argument in arguments]
        self.types = [str(argument.type) for argument in arguments]
        self.written = [
            i for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write
        ]
        self.outputs = [self.names[i] for i in self.written if arguments[i].kwarg_only]
        self._tensors = [i for i, type_ in enumerate(self.types) if "Tensor" in type_]
        self._none_optional = all(self.types[i] == "Tensor" for i in self._tensors)
        self._returns = [str(returned.type) for returned in returns]
        self._is_nested = "nested" in op._name

    def takes_tensors(self) -> bool:
        """Whether any argument may be a tensor or a list of tensors."""
        return bool(self._tensors)

    def is_alone(self) -> bool:
        """Whether the first argument is the only tensor."""
        return self._tensors == [0]

    def is_unary(self) -> bool:
        """Whether the first argument is the only tensor, and a new tensor the only result."""
        return self._tensors == [0] and self._makes_one_tensor()

    def is_binary(self) -> bool:
        """Whether the first two arguments are the only tensors, and a new one the only result."""
        return self._tensors == [0, 1] and self._makes_one_tensor()

    def is_ternary(self) -> bool:
        """Whether the first three arguments are the only tensors, and a new one the only result."""
        return self._tensors == [0, 1, 2] and self._makes_one_tensor()

    def is_binary_in_place(self) -> bool:
        """Whether the first two arguments are the only tensors, and the first is the result."""
        return (
            self._tensors == [0, 1]
            and self._none_optional
            and self.written == [0]
            and len(self._returns) == 1
        )

    def is_binary_with_output(self) -> bool:
        """Whether the first two arguments and `out` are the only tensors."""
        last = len(self.names) - 1
        return self._tensors == [0, 1, last] and self._none_optional and self.outputs == ["out"]

    def _makes_one_tensor(self) -> bool:
        # A nested tensor as the result would have to be put together of its parts.
        return self._none_optional and self._returns == ["Tensor"] and not self._is_nested


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
