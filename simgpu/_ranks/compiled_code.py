"""What torch.compile has compiled is of one rank, and of one world.

The compiler takes what a rank is told of itself for a constant: `dist.get_rank()`, the size of the
world, whether there is one. And it compiles a function at most eight times, of all ranks together.
So each rank has a region of its own in the caches of compiled functions, as those functions have
that are compiled with `isolate_recompiles=True`; and all is forgotten when a world begins or ends.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable

from simgpu._distributed.communicators import threads
from simgpu._patches import Action, Patch, Patches, Row

_DYNAMO = "torch._dynamo"
_SETS_REGION = "set_eval_frame_isolate_recompiles_id"


def _of_a_rank(stock: Callable[[int], int]) -> Callable[[int], int]:
    """PyTorch's setter of the region in which the calling thread looks for compiled code."""
    numbers = importlib.import_module(f"{_DYNAMO}.eval_frame")._next_isolate_recompiles_id
    regions: dict[tuple[int, int], int] = {}
    known: set[int] = set()

    @functools.wraps(stock)
    def set_region(region: int) -> int:
        rank = threads.rank
        if rank is None or region in known:  # one that is put back
            return stock(region)
        if (rank, region) not in regions:
            regions[rank, region] = next(numbers)
            known.add(regions[rank, region])
        return stock(regions[rank, region])

    return set_region


def _forget() -> None:
    """Let functions be compiled anew when they are called next."""
    if f"{_DYNAMO}.convert_frame" in sys.modules:  # otherwise nothing has been compiled
        importlib.import_module(_DYNAMO).reset_code_caches()


def _forget_now_and_later(patches: Patches) -> None:
    _forget()
    patches.then(_forget)


PATCHES: tuple[Row, ...] = (
    Action(
        "what torch.compile has compiled: it is forgotten",
        run=_forget_now_and_later,
        why="it holds what was so outside of the world, such as that there is no default group",
    ),
    Patch(
        f"{_DYNAMO}.eval_frame",
        _SETS_REGION,
        wrap=_of_a_rank,
        needs=_SETS_REGION,
        late=True,
        why="a rank would run what another one has compiled, with that one's number as a constant",
    ),
)
