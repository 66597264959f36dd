"""CUDA_VISIBLE_DEVICES: which of the machine's devices a program sees under `as_cuda`.

They are cuda:0 and so on in its order. PyTorch's own parser reads it, until CUDA is initialized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from simgpu._core import world
from simgpu._util.patching import Patches, Table

PATCHES = Table()

_parse: Any = torch.cuda._parse_visible_devices


def visible_devices(count: int) -> Sequence[int]:
    """The numbers of those of `count` devices that the process sees, in its order.

    One that is not there ends the list. Raises ValueError for names that are no numbers.
    """
    numbers: list[int] = []
    for number in _parse():
        if isinstance(number, str):
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES names {number!r}: simulated devices are known by their "
                f"numbers, 0 to {count - 1}, with commas between them"
            )
        if number >= count:
            break
        numbers.append(number)
    return numbers


@PATCHES.action(
    "CUDA_VISIBLE_DEVICES: it says which devices there are",
    why="programs choose their GPUs by it, before CUDA is initialized",
)
def _heed(patches: Patches) -> None:
    world.show_only(visible_devices)
    patches.then(_heed_no_more)


def _heed_no_more() -> None:
    if world.current_world() is not None:
        world.show_only(None)
