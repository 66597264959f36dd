"""`Call`: what one rank asks of its group: operator, tensors on the host, and the line that asked.

Everything that is needed to carry it out stands in it, so that a transport (processes or threads)
sees no tensor of a device.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType

import torch

from simgpu._distributed.reductions import Reduction
from simgpu._runtime.instruments import Collective

Tensor = torch.Tensor


@dataclass(eq=False)
class Call:
    """One rank's part of a collective, or of a send and its receive.

    Attributes:
        kind: the name that a program knows, such as "all_reduce".
        says: what has to be the same on all ranks: operator, dtype, shapes, root, reduction.
        shown: the same for errors, with what is this rank's own: whom it sends to.
        ins: host tensors that are read: one, or one for each rank.
        outs: host tensors that are written; those of `ins` where the operator works in place.
        peer: the root, or the rank that is sent to or received from; within the group.
        tag: which receives a send is for, where the backend looks at tags.
        reduction: how the tensors of all ranks become one.
        place: "file:line" of the program.
        device: which GPU of which machine it is, where no two ranks may be on one.
        since: the number of the first call on it.
        collective: what instruments are told of it.
        looks_for_nan: whether a NaN that this rank gives is an error.
        has_splits: whether the program said how much of a tensor is for, and from, each rank.
        nbytes: how many bytes this rank takes part with.
    """

    kind: str
    says: str
    ins: list[Tensor]
    outs: list[Tensor]
    peer: int = 0
    tag: int = 0
    reduction: Reduction | None = None
    place: str = ""
    device: str = ""
    since: int = 1
    number: int = 0
    collective: Collective | None = None
    shown: str = ""
    looks_for_nan: bool = False
    has_splits: bool = False
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.shown = self.shown or self.says
        sides = self.ins, self.outs
        self.nbytes = max(sum(tensor.nbytes for tensor in side) for side in sides)

    @property
    def row(self) -> str:
        """What calls that run one after the other have in common; "" for all collectives."""
        return f"{self.kind} {self.peer} {self.tag}" if self.kind in ("send", "recv") else ""

    def add(self, says: str, shown: str = "") -> None:
        """Say that, too; errors show it as `shown`, if that is more."""
        self.says += says
        self.shown += shown or says

    def read_apart(self) -> None:
        """Read copies of what the call overwrites: it may be written before all of it is read.

        A tensor that is read and written as one, in place, is combined before it is written.
        """
        self.ins = [
            tensor.clone() if any(overlap(tensor, out) for out in self.outs) else tensor
            for tensor in self.ins
        ]


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor, as bytes; a single element may have any stride."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def overlap(tensor: Tensor, out: Tensor) -> bool:
    """Whether two contiguous tensors of the host, unless they are one, have memory in common."""
    first, second = tensor.data_ptr(), out.data_ptr()
    return tensor is not out and first < second + out.nbytes and second < first + tensor.nbytes


def in_common(
    first: Tensor, second: Tensor, of_first: Tensor, of_second: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Where two contiguous tensors have memory in common, the bytes of their copies; one pair."""
    at, other = first.data_ptr(), second.data_ptr()
    begin = max(at, other)
    end = min(at + first.nbytes, other + second.nbytes)
    if begin >= end:
        return []
    mine = as_bytes(of_first)[begin - at : end - at]
    return [(mine, as_bytes(of_second)[begin - other : end - other])]


# How a text begins that says how tensors lie in memory, other than contiguous; and all of it.
LIES = ", in memory "
_LIES = re.compile(rf"{LIES}(?:as \w+|by dims \d+(?:, \d+)*)")


def lies(shown: str) -> str:
    """What a text of a call says of how its tensors lie in memory; "" as usual.

    Other things may be said behind it, such as on which device they are.
    """
    found = _LIES.search(shown)
    return "" if found is None else found.group()


def described(tensors: Iterable[Tensor]) -> str:
    """Dtypes and shapes, such as "float32 (8, 2)"."""
    return ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for tensor in tensors
    )


_ENGINES = ("simgpu._backend.torch_patches.autograd", "torch.autograd.graph")


def called_by_autograd() -> bool:
    """Whether C++ asks within a backward pass, as the Reducer of DistributedDataParallel does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals["__name__"].startswith("simgpu._distributed."):
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"] in _ENGINES
