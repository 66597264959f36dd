"""Checks of a collective before its data move: all ranks make the same call, and none sends NaN.

Where the ranks of a group ask different things of it, NCCL hangs, adds what does not belong
together, or ends the process; gloo aborts. Here each rank sees what all others ask before any data
moves, and the error names both calls and lines.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from simgpu._distributed.collectives import Call, described
from simgpu._util.frames import is_foreign, module_of
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import CollectiveMismatchError, NaNSentError

# How the text of a memory format begins, where it is not contiguous; and all of it.
IN_MEMORY = ", in memory "
_FORMAT = re.compile(rf"{IN_MEMORY}(?:as \w+|by dims \d+(?:, \d+)*)")


def memory_format(shown: str) -> str:
    """The memory format in the text of a call; "" where it is contiguous.

    Other facts may follow, such as their device.
    """
    found = _FORMAT.search(shown)
    return "" if found is None else found.group()


_SAME_FORMAT = (
    "Their tensors need the same memory format, or values would be exchanged: call .contiguous() "
    "before, or .contiguous(memory_format=torch.channels_last) on all of them"
)


def named_ranks(ranks: Sequence[int]) -> str:
    """ "rank 3", or "ranks 0, 1 and 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


class Asked(NamedTuple):
    """What one rank asks of its group.

    Attributes:
        agreed: what has to be the same on all ranks.
        shown: that, as a text for errors.
        place: the line that asks.
        device: which GPU of which machine it is; "" for any.
    """

    agreed: str | bytes
    shown: str
    place: str
    device: str = ""

    @classmethod
    def of(cls, call: Call) -> Asked:
        return cls(call.says, call.shown, call.place, call.device)

    @property
    def line(self) -> str:
        return f"{self.shown} at {self.place}"


def check_agreement(group: str, number: int, ranks: Sequence[int], asked: Sequence[Asked]) -> None:
    """Raise CollectiveMismatchError unless all ranks ask the same, each on a device of its own.

    Args:
        group, number: the group's name, and which of its calls this is, from 1.
        ranks: the global rank of each member.
        asked: what each member asks.
    """
    first = asked[0].agreed
    if all(each.agreed == first for each in asked):
        _check_devices(group, ranks, [each.device for each in asked])
        return
    kinds: dict[Asked, list[int]] = {}
    for rank, each in zip(ranks, asked, strict=True):
        kinds.setdefault(each._replace(device=""), []).append(rank)
    listed = "; ".join(f"{named_ranks(members)}: {each.line}" for each, members in kinds.items())
    text = with_advice(
        f"call {number} of group {group!r} is not the same on all ranks: {listed}. All ranks of a "
        "group have to make the same calls in the same order"
    )
    layouts = {memory_format(each.shown) for each in kinds}
    raise CollectiveMismatchError(f"{text}. {_SAME_FORMAT}" if len(layouts) > 1 else text)


_TOO_LATE = (
    ". CUDA_VISIBLE_DEVICES counts for a process, and there until CUDA is initialized: not in the "
    "ranks of simgpu.ranks, which are threads of one"
)


def _check_devices(group: str, ranks: Sequence[int], devices: Sequence[str]) -> None:
    taken: dict[str, int] = {}
    for rank, device in zip(ranks, devices, strict=True):
        if device and taken.get(device, rank) != rank:  # which may send to itself
            # NCCL names a device by the hexadecimal digits of its place on the bus.
            place = f"{int(device.rpartition(':')[2]) + 1:x}000"
            raise CollectiveMismatchError(
                f"Duplicate GPU detected : rank {rank} and rank {taken[device]} both on CUDA "
                f"device {place} (group {group!r}). Each rank of a group of nccl "
                "needs a device of its own: call torch.cuda.set_device(local_rank) first"
                + (_TOO_LATE if "CUDA_VISIBLE_DEVICES" in os.environ else "")
            )
        taken[device] = rank


def check_splits(
    group: str,
    number: int,
    ranks: Sequence[int],
    sent: Sequence[Sequence[int]],
    awaited: Sequence[Sequence[int]],
    asked: Sequence[Asked],
) -> None:
    """Raise CollectiveMismatchError unless each rank sends what the other one awaits, in bytes."""
    for source, row in enumerate(sent):
        for target, nbytes in enumerate(row):
            if nbytes != awaited[target][source]:
                raise CollectiveMismatchError(
                    f"call {number} of group {group!r}: rank {ranks[source]} sends {nbytes} bytes "
                    f"to rank {ranks[target]} ({asked[source].line}), which "
                    f"awaits {awaited[target][source]} ({asked[target].line})"
                )


# `TORCH_NCCL_NAN_CHECK`: whether ranks look for NaN in what they give to a collective of NCCL.
#
# On a GPU a kernel looks, before the data travel, and asserts: the process ends. What is not of
# floating point is not looked at, nor what a rank only receives.

_NAN_CHECK = "TORCH_NCCL_NAN_CHECK"
_TRUE = ("y", "yes", "1", "t", "true")  # as PyTorch reads its variables


def looks_for_nan() -> bool:
    """What the environment says; PyTorch asks it when a group is made."""
    return os.environ.get(_NAN_CHECK, "").lower() in _TRUE


def check_no_nan(call: Call) -> None:
    """Raise NaNSentError for a NaN in what this rank gives, with the first one, call and line."""
    if call.kind == "broadcast" and call.outs:
        return  # it receives, in place
    rank = "" if call.collective is None else f" {call.collective.rank}"
    for tensor in call.ins:
        found = tensor.isnan().nonzero()[:1].tolist()
        if found:
            raise NaNSentError(
                f"{DEVICE_TYPE} error: device-side assert triggered: rank{rank} gives NaN, at "
                f"index {tuple(found[0])} of {described([tensor])}, to {call.shown} at "
                f"{call.place}. Without {_NAN_CHECK} there is no such check"
            )


# The steps of DistributedDataParallel, for errors: which of them makes a collective.

# The program's line only calls forward or backward.
_NAME = "DistributedDataParallel"
_IN_BACKWARD = "sum of gradients in backward"
_BROADCAST = "broadcast of parameters and buffers when it is made"
# By the function of `torch.nn.parallel.distributed` that makes the collective.
_STEPS = {
    "__init__": "comparison of parameters when it is made",
    "_sync_final_model": "broadcast of the model after all ranks have joined",
    "_pre_forward": "agreement, before the second forward, on buckets of gradients",
    "_sync_buffers": "broadcast of buffers before forward",
    "_check_global_requires_backward_grad_sync": "check, before forward, of who has joined",
}
_EACH_BATCH = tuple(f"{_NAME}'s {step}" for step in (_IN_BACKWARD, *[*_STEPS.values()][2:]))
_UNEVEN = (
    "Where some ranks have fewer batches than others, give all the same number, or have all ranks "
    "train within `with torch.distributed.algorithms.Join([model]):`"
)
_ENGINES = ("simgpu._backend.torch_patches.autograd", "torch.autograd.graph")


def called_by_autograd() -> bool:
    """Whether C++ asks within a backward pass, as the Reducer of DistributedDataParallel does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and module_of(frame).startswith("simgpu._distributed."):
        frame = frame.f_back
    return frame is not None and module_of(frame) in _ENGINES


def current_step() -> str:
    """The step of DistributedDataParallel that asks for a collective; "" for the program itself."""
    if called_by_autograd():
        return f"{_NAME}'s {_IN_BACKWARD}"
    names, sends = [], False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_foreign(frame.f_code.co_filename):
        if module_of(frame) == "torch.nn.parallel.distributed":
            names.append(frame.f_code.co_name)
        sends |= frame.f_code.co_name == "_sync_module_states"  # a function of others too
        frame = frame.f_back
    known = [_STEPS[name] for name in names if name in _STEPS]
    if sends and known == [_STEPS["__init__"]]:
        known = [_BROADCAST]
    return f"{_NAME}'s {[*known, *names][0]}" if names else ""


def with_advice(text: str) -> str:
    """`text`, and what to do where it names a step that each batch has."""
    return f"{text}. {_UNEVEN}" if any(step in text for step in _EACH_BATCH) else text
