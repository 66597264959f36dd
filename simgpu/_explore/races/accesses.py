"""What an operator reads and writes: which of its tensors, and which bytes of memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from simgpu._core.launch import dense_parts
from simgpu._core.operators import is_view, written
from simgpu._core.order import Queue

Tensor = torch.Tensor


class Layout(NamedTuple):
    """How a tensor steps through its bytes, where it leaves some of them out."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int


# The memory of a tensor: its first byte, the one after its last, and None where it has no gaps.
Span = tuple[int, int, Layout | None]


@dataclass(slots=True, unsafe_hash=True)  # not frozen, which makes one cost five times as much
class Access:
    """One operator of one queue that reads or writes some bytes, asked for at a line."""

    queue: Queue
    number: int
    begin: int  # its span
    end: int
    layout: Layout | None
    writes: bool
    op: str
    place: str

    @property
    def span(self) -> Span:
        """The address range of the bytes."""
        return self.begin, self.end, self.layout


class TensorArguments(NamedTuple):
    """The arguments of an operator that are tensors which it reads (False) or writes (True)."""

    positions: tuple[tuple[int, bool], ...]
    names: tuple[tuple[str, bool], ...]


# They look at the shapes of their tensors only, or at where their memory is.
_DESCRIPTIVE = (
    *("_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
    *("is_pinned", "is_set_to"),
)
_COPIES = {
    torch.ops.aten.copy_.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten._foreach_copy_.default,
}


@functools.cache
def tensor_arguments(op: torch._ops.OpOverload, training: bool = True) -> TensorArguments:
    """Which arguments of `op` are tensors whose memory it reads or writes.

    `training` is what `simgpu._core.operators.trains` says of the call.
    """
    if op._schema.name.rpartition("::")[2].endswith(_DESCRIPTIVE) or is_view(op):
        return TensorArguments((), ())
    changes = written(op, training)
    arguments = [
        (at, argument.name, at in changes)
        for at, argument in enumerate(op._schema.arguments)
        if "Tensor" in str(argument.type)
    ]
    return TensorArguments(
        tuple((at, writes) for at, _, writes in arguments),
        tuple((name, writes) for _, name, writes in arguments),
    )


def is_copy_of_device(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call copies from or to a device, whose stream does it and not the host."""
    if op not in _COPIES:
        return False
    device = kwargs.get("device")
    devices = [tensor.device for value in args for tensor in dense(value)]
    return any(each.type != "cpu" for each in (devices if device is None else (*devices, device)))


def tensors_of(
    marked: TensorArguments, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[Tensor, bool]]:
    """The tensors that a call touches, and whether it writes to each."""
    found = []
    count = len(args)
    for at, writes in marked.positions:
        if at < count:
            for tensor in dense(args[at]):
                found.append((tensor, writes))
    if kwargs:
        found += [
            (tensor, writes)
            for name, writes in marked.names
            if name in kwargs
            for tensor in dense(kwargs[name])
        ]
    return found


def dense(value: Any) -> Sequence[Tensor]:
    """The tensors with memory of their own in an argument or result."""
    if isinstance(value, Tensor):
        return dense_parts(value)
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in dense(item)]
    return ()


def span_of(tensor: Tensor) -> Span | None:
    """The bytes of `tensor`; None where it has none."""
    begin = tensor.data_ptr()
    if not begin:
        return None
    nbytes = tensor.nbytes
    if tensor.is_contiguous():
        return (begin, begin + nbytes, None) if nbytes else None
    shape, stride, itemsize = tuple(tensor.shape), tensor.stride(), tensor.itemsize
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    length = (last + 1) * itemsize
    repeats = any(n > 1 and not step for n, step in zip(shape, stride, strict=True))
    # Where elements appear twice, the bytes between others may be left out.
    filled = nbytes == length and not repeats
    return begin, begin + length, None if filled else Layout(shape, stride, itemsize)


def share_bytes(one: Span, other: Span) -> bool:
    """Whether two spans have a byte in common: columns of a matrix have none, for example."""
    begin, end = min(one[0], other[0]), max(one[1], other[1])
    if one[0] >= other[1] or other[0] >= one[1]:
        return False
    if one[2] is None and other[2] is None:
        return True
    marks = torch.zeros(end - begin, dtype=torch.bool, device="cpu")
    _bytes_within(marks, one, begin).fill_(True)
    return bool(_bytes_within(marks, other, begin).any())


def _bytes_within(marks: Tensor, span: Span, first: int) -> Tensor:
    """The elements of `marks`, one for each byte from `first`, that represent those of `span`."""
    begin, end, layout = span
    if layout is None:
        return marks[begin - first : end - first]
    steps = [step * layout.itemsize for step in layout.stride]
    return marks.as_strided((*layout.shape, layout.itemsize), (*steps, 1), begin - first)
