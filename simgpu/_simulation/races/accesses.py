"""What an operator reads and writes: which of its tensors, and which bytes of memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from simgpu._runtime.launch import dense_parts
from simgpu._simulation.races.order import Queue

Tensor = torch.Tensor


class Span(NamedTuple):
    """Where a tensor lies: its first byte, the one after its last, and how it steps between."""

    begin: int
    end: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int


class Access(NamedTuple):
    """One operator of one queue that reads or writes some bytes, asked for at a line."""

    queue: Queue
    number: int
    span: Span
    writes: bool
    op: str
    place: str


class Touched(NamedTuple):
    """By position and by name, the arguments of an operator that it reads, and that it writes."""

    positions: tuple[tuple[int, bool], ...]
    names: tuple[tuple[str, bool], ...]


# They look at the shapes of their tensors only.
_DESCRIPTIVE = ("_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full")


@functools.cache
def touched(op: torch._ops.OpOverload) -> Touched:
    """Which arguments of `op` are tensors whose memory it reads (False) or writes (True)."""
    if op._schema.name.rpartition("::")[2].endswith(_DESCRIPTIVE):
        return Touched((), ())
    arguments = [
        (at, argument.name, bool(argument.alias_info and argument.alias_info.is_write))
        for at, argument in enumerate(op._schema.arguments)
        if "Tensor" in str(argument.type)
    ]
    return Touched(
        tuple((at, writes) for at, _, writes in arguments),
        tuple((name, writes) for _, name, writes in arguments),
    )


def tensors_of(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Tensor, bool]]:
    """The tensors that a call touches, and whether it writes to each."""
    marked = touched(op)
    for at, writes in marked.positions:
        if at < len(args):
            for tensor in dense(args[at]):
                yield tensor, writes
    if kwargs:
        for name, writes in marked.names:
            if name in kwargs:
                for tensor in dense(kwargs[name]):
                    yield tensor, writes


def dense(value: Any) -> Iterator[Tensor]:
    """The tensors with memory of their own in an argument or result."""
    if isinstance(value, Tensor):
        yield from dense_parts(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from dense(item)


def span_of(tensor: Tensor) -> Span | None:
    """The bytes of `tensor`; None where it has none."""
    begin = tensor.data_ptr()
    if not begin or not tensor.numel():
        return None
    shape, stride, itemsize = tuple(tensor.shape), tensor.stride(), tensor.itemsize
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return Span(begin, begin + (last + 1) * itemsize, shape, stride, itemsize)


def share_bytes(one: Span, other: Span) -> bool:
    """Whether two spans have a byte in common: columns of a matrix have none, for example."""
    if one.begin >= other.end or other.begin >= one.end:
        return False
    if is_filled(one) and is_filled(other):
        return True
    begin = min(one.begin, other.begin)
    marks = torch.zeros(max(one.end, other.end) - begin, dtype=torch.bool, device="cpu")
    _bytes_within(marks, one, begin).fill_(True)
    return bool(_bytes_within(marks, other, begin).any())


def is_filled(span: Span) -> bool:
    """Whether a span has no gaps: as many elements as fit."""
    elements = 1
    for size, step in zip(span.shape, span.stride, strict=True):
        if size > 1 and not step:
            return False  # repeated elements: counted exactly by the marks
        elements *= size
    return elements * span.itemsize == span.end - span.begin


def _bytes_within(marks: Tensor, span: Span, begin: int) -> Tensor:
    """The elements of `marks`, one for each byte from `begin`, that stand for those of `span`."""
    stride = [step * span.itemsize for step in span.stride]
    return marks.as_strided((*span.shape, span.itemsize), (*stride, 1), span.begin - begin)
