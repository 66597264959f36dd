"""`SharedMemory`: where each rank of a group writes what the others read, on one machine.

Sockets copy data into the system and out of it for each pair of ranks. Memory that all processes
map is written once. Each rank makes a file in memory for its part; the file is removed as soon as
all ranks have mapped it, so that nothing is left of a process that is killed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

Tensor = torch.Tensor

_IN_MEMORY = Path("/dev/shm")  # where Linux keeps such files; other systems: that of all such files
_NAME = 256  # bytes of a file's name


class SharedMemory:
    """A part of equal size for each rank, written by that rank and read by all.

    A rank writes, all ranks wait for each other, and then they read. The call after that takes the
    other half of each part, since a rank may write for it while others still read. In the one after
    that none does: all have come to the call between.
    """

    def __init__(self, parts: list[Tensor], rank: int) -> None:
        self._halves = [part.view(2, -1) for part in parts]
        self._rank = rank
        self._turn = 0

    @property
    def nbytes(self) -> int:
        """How much a rank can write for one call."""
        return self._halves[0].shape[1]

    def write(self) -> Tensor:
        """This rank's bytes for the next call."""
        self._turn = 1 - self._turn
        return self._halves[self._rank][self._turn]

    def read(self) -> list[Tensor]:
        """The bytes of all ranks for this call, when all have come."""
        return [halves[self._turn] for halves in self._halves]


def share(
    nbytes: int, rank: int, exchange: Callable[[Tensor], list[Tensor]]
) -> SharedMemory | None:
    """Memory in which each rank can write `nbytes` for a call; None if any rank cannot have it.

    None is for ranks on several machines, and for too little room. All ranks of a group have to
    call this; `exchange` sends a tensor to all of them, and returns those of all.
    """
    with _file(2 * nbytes) as name:
        names = [bytes(sent.tolist()).rstrip(b"\0").decode() for sent in exchange(_padded(name))]
        parts = [part for each in names if (part := _mapped(each, 2 * nbytes)) is not None]
        complete = torch.tensor([len(parts) == len(names)], device="cpu")
        everywhere = all(map(bool, exchange(complete)))
    return SharedMemory(parts, rank) if everywhere else None


@contextlib.contextmanager
def _file(size: int) -> Iterator[str]:
    """The name of a file of `size` bytes, until the end of the block; "" where there is no room.

    It is written whole: memory that is only promised ends the process when it is touched.
    """
    folder = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="simgpu-", dir=folder))
            file.write(bytes(size))
            file.flush()
            name = file.name
        except OSError:
            name = ""
        yield name


def _padded(name: str) -> Tensor:
    return torch.tensor(list(name.encode().ljust(_NAME, b"\0")), dtype=torch.uint8, device="cpu")


def _mapped(name: str, size: int) -> Tensor | None:
    """The memory behind a file, as bytes; None where there is no such file."""
    try:
        if os.stat(name).st_size != size:
            return None
        return torch.from_file(name, shared=True, size=size, dtype=torch.uint8, device="cpu")
    except (OSError, RuntimeError):
        return None
