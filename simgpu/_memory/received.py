"""What a process calls to have a tensor that another process sent: the names in what is pickled.

A call of these may be the first thing that a new process does, and importing torch may then make
its devices, which imports most of this package. So torch comes before any other file of it, and
both are imported within the functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import torch


def rebuild_tensor(
    is_parameter: bool,
    requires_grad: bool,
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    place: tuple[int, Sequence[int], Sequence[int]],
    bits: tuple[bool, bool],
) -> torch.Tensor:
    """A tensor over a storage that was received."""
    import torch

    from simgpu._memory.sharing import tensor_over

    tensor = tensor_over(storage, dtype, place, bits)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def rebuild_storage(
    host: torch.UntypedStorage | None, index: int, strategy: str
) -> torch.UntypedStorage:
    """A storage of device `index` over shared memory; an empty one where there is none."""
    import torch  # noqa: F401  # first of all

    from simgpu._memory.sharing import on_shared_memory
    from simgpu._memory.storages import new_storage

    return new_storage(0, index) if host is None else on_shared_memory(host, index, strategy)


def raise_error(name: str, text: str) -> NoReturn:
    """Raise what kept the other process from sending: an error of `simgpu.errors`, or else torch's.

    Errors are sent by name, for the reason above.
    """
    import torch  # noqa: F401  # first of all

    from simgpu import errors

    kind: type[Exception] = getattr(errors, name, RuntimeError)
    raise kind(text)
