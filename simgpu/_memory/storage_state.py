"""What simgpu remembers about one storage: one object under one attribute of the storage.

PyTorch keeps a storage's Python object, and with it this attribute, for as long as the memory
lives. Most storages have no such object; it is made for the first thing that has to be remembered.
(What a tensor's memory takes of its device is remembered elsewhere: see `ownership`.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

_ATTRIBUTE = "_simgpu_state"


@dataclass(frozen=True)
class SharedMemory:
    """Memory under a storage that other processes can have too (`sharing`)."""

    host: torch.UntypedStorage
    """The same memory, of the host: PyTorch can send it."""

    strategy: str
    """PyTorch's sharing strategy by which it is shared."""

    before: torch.UntypedStorage | None
    """What the storage stood on before, which is in the ledger; None where it was received."""


class Memory(NamedTuple):
    """Facts about the memory that a storage has now; replaced together with that memory."""

    extent: int = 0
    """Of a storage that has shrunk: the most bytes it ever had."""

    counted: torch.UntypedStorage | None = None
    """Of a storage that has shrunk: the storage that the device counts in its place."""

    outlived: tuple[torch.UntypedStorage, ...] = ()
    """Memory that resizes replaced while something else pointed into it (`exported`)."""

    shared: SharedMemory | None = None
    """Of a storage that was sent to another process, or received."""


class StorageState:
    """What is known of a storage beyond what PyTorch knows."""

    __slots__ = ("exported", "memory", "pinned")

    def __init__(self) -> None:
        # Host memory that counts as pinned.
        self.pinned = False
        # Whether something points into the memory without using the storage: a slice of the
        # storage, or a DLPack capsule.
        self.exported = False
        self.memory = Memory()


def known_state(storage: torch.UntypedStorage) -> StorageState | None:
    """What is remembered about `storage`, or None where that is nothing."""
    return getattr(storage, _ATTRIBUTE, None)


def state_of(storage: Any) -> StorageState:
    """What is remembered about `storage`, to be changed."""
    state = known_state(storage)
    if state is None:
        state = storage._simgpu_state = StorageState()
    return state
