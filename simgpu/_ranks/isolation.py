"""What each rank that is a thread has of its own in variables of the process.

Random numbers, the environment that torchrun sets, PyTorch's settings, and the few variables in
which it keeps something of one rank; process groups are in `thread_groups`. Everything else, such
as other globals of modules, is shared by the ranks, as threads share it.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from simgpu._patches import Patch, Row
from simgpu._ranks import numpy_random, settings, variables


class State:
    """What one rank has in variables of the process, kept while others run."""

    def __init__(self, rank: int, count: int, of_a_rank: bool = True) -> None:
        self._variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "0",
        }
        self.save()
        if of_a_rank:
            self._numpy = numpy_random.Kept().of_a_rank()
            self._noted = variables.of_a_rank()

    def save(self) -> None:
        """Note generators and variables, which another rank is about to use."""
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = numpy_random.Kept()
        self._noted = variables.noted()
        self._settings = settings.noted()

    def restore(self) -> None:
        """Put all in place."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        self._numpy.put_back()
        variables.put_back(self._noted)
        settings.put_back(self._settings)
        os.environ.update(self._variables)


class CallerState(State):
    """The state of the thread that starts a world, which `restore` puts back afterwards.

    `restore` also puts back `sys.excepthook`, which each `init_process_group` wraps so that it
    prints the rank.
    """

    def __init__(self) -> None:
        super().__init__(0, 1, of_a_rank=False)
        self._before = {name: os.environ.get(name) for name in self._variables}
        self._excepthook = sys.excepthook

    def restore(self) -> None:
        super().restore()
        sys.excepthook = self._excepthook
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _without_cache(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        self.cache_enabled = False

    return __init__


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "__init__",
        wrap=_without_cache,
        why='its cache is shared by threads, in each of which "cuda" is another device',
    ),
    Patch(
        "torch.distributed.c10d_logger._c10d_logger",
        "disabled",
        True,
        needs="disabled",
        why="each rank would log the error that its world raises, and pytest shows it again",
    ),
)
