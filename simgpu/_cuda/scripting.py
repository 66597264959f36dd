"""TorchScript under `as_cuda`: replaced functions are the same operators to `torch.jit.script`.

The compiler of TorchScript knows functions of torch by identity, in a table of its own, and tries
to compile whatever it does not find there.
"""

from __future__ import annotations

import functools

import torch.jit._builtins

from simgpu._patches import Action, Patches, Row


def _teach_replacements(patches: Patches) -> None:
    """Enter each function that was replaced under the operator that the stock one stands for."""
    builtins: dict[int, str] = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    for _, stock, value in patches.replaced:
        operator = builtins.get(id(stock))
        if operator is not None and id(value) not in builtins:
            builtins[id(value)] = operator
            patches.then(functools.partial(builtins.__delitem__, id(value)))


PATCHES: tuple[Row, ...] = (
    Action(
        "the table of operators that TorchScript knows",
        run=_teach_replacements,
        why="torch.tensor and its kin are operators to the compiler, replaced or not",
    ),
)
