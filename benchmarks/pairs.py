"""How much longer a kernel takes in a process that has had something than in one that has not.

Two processes launch batches of one kernel in turns; the median of the ratios of neighbouring
batches counts, so that what disturbs the machine for longer than a batch disturbs both. Where their
memory happens to be, one process is a few percent slower than another for all of its life: several
pairs of processes are asked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import simgpu

HOST_TIME = time.perf_counter  # a schedule replaces the one in `time`
Had = Callable[[], contextlib.AbstractContextManager[Any]]


def launch_in_batches(pipe: Any, had: Had | None, count: int = 300) -> None:
    """In a process of its own: what a batch of kernels takes, as often as it is asked."""
    torch.set_num_threads(1)
    with simgpu.devices(2):
        if had is not None:
            with had():
                torch.ones(4, device="simgpu:1")
        x = torch.ones(4, device="simgpu:1")
        while pipe.recv():
            begin = HOST_TIME()
            for _ in range(count):
                x + x
            pipe.send(HOST_TIME() - begin)


def launches_compared(had: Had, processes: int = 8, pairs: int = 250) -> tuple[float, float]:
    """The mean of the ratios after the block that `had` makes, and its standard error.

    Of each of several pairs of processes, the median counts.
    """
    ratios = [_median(had, pairs) for _ in range(processes)]
    return statistics.mean(ratios), statistics.stdev(ratios) / processes**0.5


def _median(had: Had, pairs: int) -> float:
    """The median of the ratios of one pair of processes."""
    spawn = multiprocessing.get_context("spawn")
    pipes = []
    for one in (None, had):
        here, there = spawn.Pipe()
        spawn.Process(target=launch_in_batches, args=(there, one), daemon=True).start()
        pipes.append(here)

    def seconds(pipe: Any) -> float:
        pipe.send(True)
        return pipe.recv()

    ratios = []
    for pair in range(pairs):
        order = pipes if pair % 2 else pipes[::-1]
        taken = {id(pipe): seconds(pipe) for pipe in order}
        ratios.append(taken[id(pipes[1])] / taken[id(pipes[0])])
    for pipe in pipes:
        pipe.send(False)
    return statistics.median(ratios[10:])
