"""What a rank asks of its group (`Call`), and reductions.

A `Call` has everything that a transport (processes or threads) needs, and no tensor of a device.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import distributed

from simgpu import comm
from simgpu._core.hooks import Collective
from simgpu.comm import FLOAT8

Tensor = torch.Tensor


class _PerThread(threading.local):
    factor: Any = None
    """That of the PREMUL_SUM which a method of ProcessGroup has been called with."""


per_thread = _PerThread()

# Reductions over ranks: sum, mean, product and others of one tensor per rank, on the host.
#
# Added in the order of the ranks, or as `simgpu.comm.reduction` says. A mean is what NCCL computes:
# of floating-point numbers each rank's are multiplied by 1/n before they are added, of integers the
# sum is divided, towards zero. Sums of truth values are their "or".

# Without what is replaced for code that may pass backward.
_call_method = inspect.unwrap(torch._C.ScriptMethod.__call__)

BITWISE = ("BAND", "BOR", "BXOR")
_COMBINE: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


@dataclass(frozen=True)
class Reduction:
    """A `torch.distributed.ReduceOp`: its name, and the factor of PREMUL_SUM."""

    name: str
    factor: Any = None

    @staticmethod
    def of(op: Any) -> Reduction:
        """What a ReduceOp means, boxed by the dispatcher or not.

        Raises for a PREMUL_SUM that C++ calls, which leaves no trace of the factor.
        """
        kind: Any = op.op
        kind = _call_method(kind) if isinstance(op, torch._C.ScriptObject) else kind
        name = distributed.ReduceOp.RedOpType(int(kind)).name
        if name == "PREMUL_SUM" and per_thread.factor is None:
            raise NotImplementedError(
                "the factor of ReduceOp.PREMUL_SUM is not known here: call it through "
                "torch.distributed"
            )
        return Reduction(name, per_thread.factor if name == "PREMUL_SUM" else None)

    def prepare(self, mine: Tensor, count: int) -> Tensor:
        """This rank's part as it is to be combined: a new tensor where it differs."""
        dtype = mine.dtype
        if self.name == "AVG" and not _is_integral(dtype):
            factor = 1.0 / count
        elif self.name == "PREMUL_SUM":
            factor = self.factor.item() if isinstance(self.factor, Tensor) else self.factor
        else:
            return mine
        if dtype in FLOAT8:
            return (mine.float() * factor).to(dtype)
        return mine * torch.tensor(
            factor, dtype=dtype.to_real() if dtype.is_complex else dtype, device="cpu"
        )

    def combine(self, parts: list[Tensor], segment: int | None = None) -> Tensor:
        """One new tensor of the prepared parts of all ranks, in the order of the model in force.

        `segment` says which of as many segments as there are ranks these are, None that they are
        all of them.
        """
        dtype = parts[0].dtype
        if dtype in FLOAT8:
            return self.combine([part.float() for part in parts], segment).to(dtype)
        function = _COMBINE[self.name]

        def into(total: Tensor, part: Tensor) -> None:
            function(total, part, out=total)

        total = comm.fold(parts, into, segment)
        if self.name == "AVG" and _is_integral(dtype):
            total = torch.div(total, len(parts), rounding_mode="trunc")
        return total


def _is_integral(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


Pattern = Literal["none", "all", "each", "to_root", "from_root", "pair"]

# Who gets whose tensors: all ranks those of all; each rank what every other one has for it; the
# root those of all; all ranks what the root has for them; or the receiver that of the sender.
PATTERNS: dict[str, Pattern] = {
    "barrier": "none",
    "all_reduce": "all",
    "all_gather": "all",
    "all_to_all": "each",
    "reduce_scatter": "each",
    "reduce": "to_root",
    "gather": "to_root",
    "broadcast": "from_root",
    "scatter": "from_root",
    "send": "pair",
    "recv": "pair",
}


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
        collective: its description for instruments.
        looks_for_nan: whether a NaN that this rank gives is an error.
        has_splits: whether the program gave sizes for and from each rank.
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
    def is_between_two(self) -> bool:
        """Whether it is a send or a receive."""
        return self.pattern == "pair"

    @property
    def row(self) -> str:
        """What calls that run one after the other have in common; "" for all collectives."""
        return f"{self.kind} {self.peer} {self.tag}" if self.is_between_two else ""

    @property
    def line(self) -> str:
        """What errors show of it."""
        return f"{self.shown} at {self.place}"

    def named_in(self, group: str) -> str:
        """The call and its line for a text, with its number in the group of this name."""
        return f"{self.line} (call {self.number} of group {group!r})"

    def add(self, says: str, shown: str = "") -> None:
        """Append to what all ranks compare; and to what errors show, there as `shown` if given."""
        self.says += says
        self.shown += shown or says

    @property
    def pattern(self) -> Pattern:
        """Who gets whose tensors."""
        return PATTERNS[self.kind]

    # What a kind of call means: a transport brings `part_for` of each rank that has one to the rank
    # that gets it, which writes what `combined` makes of all of them.

    def part_for(self, rank: int, count: int) -> Tensor:
        """What this rank has for another one of `count`; ready to be combined, if it reduces."""
        part = self.ins[rank if len(self.ins) > 1 else 0]
        return part if self.reduction is None else self.reduction.prepare(part, count)

    def space_for(self, part: Tensor, count: int) -> list[Tensor]:
        """Where the parts of `count` ranks may arrive, which are like this one if it reduces."""
        copies = self.reduction is not None
        return [torch.empty_like(part) for _ in range(count)] if copies else self.outs

    def combined(self, parts: list[Tensor], segment: int | None = None) -> list[Tensor]:
        """What the outputs are to hold, of the parts of all ranks; `segment` as in `Reduction`."""
        if self.reduction is None or len(parts) == 1:
            return parts
        return [self.reduction.combine(parts, segment)]

    def write(self, values: Sequence[Tensor]) -> None:
        """Put them into the outputs."""
        for out, value in zip(self.outs, values, strict=True):
            if out is not value:
                out.view(-1).copy_(value.reshape(-1))

    def clone_overlapping_inputs(self) -> None:
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


def _shared(first: Tensor, second: Tensor) -> tuple[int, int]:
    """From where to where two contiguous tensors have memory in common, if that is after it."""
    at, other = first.data_ptr(), second.data_ptr()
    return max(at, other), min(at + first.nbytes, other + second.nbytes)


def overlap(tensor: Tensor, out: Tensor) -> bool:
    """Whether two contiguous tensors of the host, unless they are one, have memory in common."""
    begin, end = _shared(tensor, out)
    return tensor is not out and begin < end


def in_common(
    first: Tensor, second: Tensor, of_first: Tensor, of_second: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Where two contiguous tensors have memory in common, the bytes of their copies; one pair."""
    begin, end = _shared(first, second)
    if begin >= end:
        return []
    at, other = first.data_ptr(), second.data_ptr()
    mine = as_bytes(of_first)[begin - at : end - at]
    return [(mine, as_bytes(of_second)[begin - other : end - other])]


def described(tensors: Iterable[Tensor]) -> str:
    """Dtypes and shapes, such as "float32 (8, 2)"."""
    return ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for tensor in tensors
    )
