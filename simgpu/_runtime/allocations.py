"""What `Device.allocate` makes: what keeps bytes of a device, and what they are known by."""

from __future__ import annotations

import functools

import torch


class Allocation(functools.partial[None]):
    """Bytes of a device that are taken for as long as this object lives; made by `Device.allocate`.

    It hangs on the host tensor that owns a simulated tensor's memory, so it dies exactly when the
    last tensor, view or autograd node over that memory does. It is a call to be made then, all of
    it in C: a Python function would let the handler of a signal (Ctrl-C) run, and an error that it
    raises while an object dies is lost, together with the bytes.
    """

    __slots__ = ()
    __del__ = functools.partial.__call__


class Block(int):
    """The bytes of one allocation, as a number that can be told from all others.

    `Device.allocate` makes one where instruments see allocations, and hands them the same object
    when it is given back.
    """

    address: int  # of the storage, 0 where none is known
    requested: int  # bytes before they were rounded up
    stream: int  # the number of the one that was current

    @classmethod
    def of(cls, nbytes: int, stream: int, storage: torch.UntypedStorage | None) -> Block:
        """The bytes that a storage takes, if any, allocated while a stream was current."""
        self = cls(nbytes)
        self.stream = stream
        self.address = 0 if storage is None else storage.data_ptr()
        self.requested = nbytes if storage is None else storage.nbytes()
        return self
