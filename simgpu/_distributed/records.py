"""What a rank tells the others of a call before it begins, in a record of one size.

A digest of what has to be the same on all ranks, then a text for the error where it is not.
"""

from __future__ import annotations

import functools
import hashlib

import torch

from simgpu import comm
from simgpu._distributed.agreement import Asked
from simgpu._distributed.calls import Call

Tensor = torch.Tensor

SIZE = 512  # bytes
_DIGEST = 16


def of(call: Call) -> Tensor:
    """What this rank says of a call; shared by calls that are alike."""
    other = call.reduction is not None and not comm.is_ordered()
    more = ", not in the order of the ranks" if other else ""
    return _record(call.says + more, call.shown + more, call.place, call.device)


@functools.lru_cache(maxsize=256)
def _record(says: str, shown: str, place: str, device: str) -> Tensor:
    told = shown.encode()
    digest = hashlib.blake2b(says.encode(), digest_size=_DIGEST).digest()
    room = SIZE - _DIGEST - 1
    where = place.encode()[-200:] + b"\0" + device.encode()[-60:]
    text = told[: room - len(where)] + b"\0" + where
    return torch.frombuffer(bytearray((digest + text).ljust(SIZE, b"\0")), dtype=torch.uint8)


def are_alike(records: list[Tensor]) -> bool:
    """Whether all ranks say that they make the same call."""
    first = records[0][:_DIGEST]
    return all(torch.equal(record[:_DIGEST], first) for record in records[1:])


def read(record: Tensor) -> Asked:
    """What a rank asked for."""
    whole = bytes(record.tolist())
    text = whole[_DIGEST:].decode(errors="replace")
    shown, place, device, *_ = [*text.split("\0"), "", ""]
    return Asked(whole[:_DIGEST], shown, place, device)
