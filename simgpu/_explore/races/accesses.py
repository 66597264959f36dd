"""What an operator reads and writes, and the report of two accesses that nothing puts in order."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from simgpu._core.launch import dense_parts
from simgpu._core.operators import is_view, written
from simgpu._core.order import FIRST_GROUP, HOST, Queue
from simgpu._util.naming import DEVICE_TYPE, visible_text

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


# What is reported of two accesses.


def name_of(queue: Queue) -> str:
    """A queue in words: "simgpu:1, stream 3", "the host"."""
    if queue == HOST:
        return "the host"
    index, stream = queue
    if stream <= FIRST_GROUP:
        return f"{DEVICE_TYPE}:{index}, stream of a process group"
    return f"{DEVICE_TYPE}:{index}, " + (f"stream {stream}" if stream else "default stream")


# What a program calls, of operators that have another name.
_CALLED = {
    "_to_copy": "to(), cpu() or tolist() (_to_copy)",
    "_local_scalar_dense": "item() (_local_scalar_dense)",
}


def _description_of(access: Access) -> str:
    verb = "writes" if access.writes else "reads"
    op = _CALLED.get(access.op, access.op)
    return f"{op} on {name_of(access.queue)} {verb} at {access.place}"


@dataclass(frozen=True)
class Race:
    """Two accesses to the same memory in no order, or one to memory that may be in use again.

    Attributes:
        kind: "access", or "free" where memory was given back, and the next allocation of its stream
            may get it while the first access still runs.
        first, second: the accesses as asked for, each with `op`, `queue` (device and stream),
            `writes` and `place` ("file:line"). Of a free, the second is that allocation.
        advice: what would put them in order.
    """

    kind: str
    first: Access
    second: Access
    advice: str
    _text: str = field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        # With the name that the devices have where it is found, and not where it is printed.
        object.__setattr__(self, "_text", visible_text(self._report()))

    def __str__(self) -> str:
        return self._text

    def _report(self) -> str:
        if self.kind == "free":
            return (
                f"race: memory that was given back on {name_of(self.second.queue)} may be used by "
                f"its allocation at {self.second.place}\n  in no order with\n"
                f"    {_description_of(self.first)}\n  {self.advice}"
            )
        return (
            f"race: {_description_of(self.second)}\n"
            f"  in no order with\n    {_description_of(self.first)}\n  {self.advice}"
        )


def race_of(first: Access, second: Access) -> Race:
    """The report of two accesses."""
    if second.queue == HOST:
        advice = (
            f"Before that, make the host wait: by synchronize() of {name_of(first.queue)}, or of "
            "an event recorded there."
        )
    elif first.queue == HOST:
        advice = "Ask for the work after the host is done."
    elif first.queue[1] <= FIRST_GROUP:
        advice = "Before that, call wait() on the work that the collective returned."
    else:
        advice = (
            f"Before that, make {name_of(second.queue)} wait for {name_of(first.queue)}: by "
            "wait_stream(), or by wait_event() for an event recorded there."
        )
    return Race("access", first, second, advice)


def race_with_allocation(access: Access, allocation: Access) -> Race:
    """The report of an access to memory that was given back, and may be that of an allocation."""
    advice = (
        f"Call record_stream() with {name_of(access.queue)} on the tensor, keep it, or make "
        f"{name_of(allocation.queue)} wait before its next allocation."
    )
    return Race("free", access, allocation, advice)
