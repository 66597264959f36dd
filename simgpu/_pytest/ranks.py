"""The marker `ranks` and what its fixture gives: a world of torch.distributed in threads."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

DESCRIPTION = (
    "ranks(count): the fixture `ranks` runs a function on `count` ranks of torch.distributed, "
    "which are threads of this process with one simulated device each."
)

Run = Callable[..., list[Any]]


@contextlib.contextmanager
def lend_ranks(node: pytest.Item) -> Iterator[Run]:
    """What the marker of a test asks for; devices by the name of CUDA, where there are none."""
    marker = node.get_closest_marker("ranks")
    if marker is None or len(marker.args) != 1 or marker.kwargs:
        raise pytest.UsageError(
            f"{node.nodeid} takes the fixture `ranks`, and has to say how many: "
            "@pytest.mark.ranks(4)"
        )
    import simgpu
    from simgpu._runtime import world

    [count] = marker.args
    with contextlib.ExitStack() as ends:
        if not world.device_count():
            ends.enter_context(simgpu.as_cuda(count))
        yield functools.partial(simgpu.ranks, count)
