"""What torch.distributed costs on simulated devices, in processes and in threads.

    python benchmarks/distributed.py [--quick]

Prints, in one run: a DDP step on simulated devices next to the same step on CPU tensors with gloo,
in the same processes and in turns, so that a busy machine disturbs both; a whole world (start, DDP,
one step, end) in threads next to `torch.multiprocessing.spawn` of the same with gloo; a world with
a step written with collectives next to the threads of PyTorch's MultiThreadedTestCase; and what
1,000 worlds leave behind. The limits are those that the project holds itself to. Times are medians
of the slowest rank, with one intra-op thread.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn

import simgpu
from simgpu._distributed import groups as distributed_groups

STEP_LIMIT, SPAWN_LIMIT, THREADED_LIMIT = 1.6, 50, 2


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def ddp_step(device: torch.device) -> Callable[[], None]:
    """One step of training with DistributedDataParallel: forward, backward, SGD."""
    ids = [device.index] if device.type == "cuda" else None
    model = nn.parallel.DistributedDataParallel(network().to(device), device_ids=ids)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def measure_steps(rank: int, count: int, steps: int, folder: str) -> None:
    """In a process: both kinds of steps in turns; rank 0 writes the medians of the slowest."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with simgpu.as_cuda(count):
        torch.cuda.set_device(rank)
        store = distributed.FileStore(f"{folder}/store{count}", count)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl", rank=rank, world_size=count, store=store
        )
        kinds = [ddp_step(torch.device("cpu")), ddp_step(torch.device("cuda", rank))]
        times: list[list[float]] = [[], []]
        for number in range(steps + 10):
            for kind, step in enumerate(kinds):
                distributed.barrier(device_ids=[rank])
                begin = time.perf_counter()
                step()
                took = torch.tensor(time.perf_counter() - begin)
                distributed.all_reduce(took, distributed.ReduceOp.MAX)
                if number >= 10:
                    times[kind].append(took.item())
        if rank == 0:
            medians = [statistics.median(each) * 1e3 for each in times]
            Path(folder, f"times{count}").write_text(" ".join(map(str, medians)), encoding="utf-8")
        distributed.destroy_process_group()


def compare_steps(counts: list[int], steps: int) -> bool:
    print(f"DDP step, processes      gloo/CPU   simulated       ratio   limit {STEP_LIMIT}")
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            multiprocessing.spawn(measure_steps, (count, steps, folder), nprocs=count)
            plain, ours = map(float, Path(folder, f"times{count}").read_text("utf-8").split())
            print(f"  {count} ranks {plain:21.2f} ms{ours:10.2f} ms{ours / plain:10.2f}")
            kept = kept and ours / plain <= STEP_LIMIT
    return kept


def spawned(rank: int, count: int, folder: str) -> None:
    """In a process: a world with gloo and CPU tensors, for one step."""
    store = distributed.FileStore(f"{folder}/store", count)
    distributed.init_process_group("gloo", rank=rank, world_size=count, store=store)
    ddp_step(torch.device("cpu"))()
    distributed.destroy_process_group()


def best_of(times: int, run: Callable[[], object]) -> float:
    """The shortest time of several, in milliseconds."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        took.append((time.perf_counter() - begin) * 1e3)
    return min(took)


def in_threads(count: int) -> object:
    return simgpu.ranks(count, lambda rank: ddp_step(torch.device("cuda", rank))())


def compare_worlds(count: int) -> bool:
    """A whole world: start, DDP(), one step, end."""
    with tempfile.TemporaryDirectory() as folder:

        def spawn() -> None:
            Path(folder, "store").unlink(missing_ok=True)
            multiprocessing.spawn(spawned, (count, folder), nprocs=count)

        theirs = best_of(2, spawn)
    with simgpu.as_cuda(count):
        in_threads(count)
        ours = best_of(10, functools.partial(in_threads, count))
    print(
        f"world of {count} with a DDP step: mp.spawn and gloo {theirs:.0f} ms, "
        f"threads {ours:.1f} ms"
    )
    print(f"  {theirs / ours:.0f} times faster, limit {SPAWN_LIMIT}")
    return theirs / ours >= SPAWN_LIMIT


def collective_step(device: torch.device) -> None:
    """One step as DDP does it, written with collectives that all test backends have."""
    model = network().to(device)
    for parameter in model.parameters():
        distributed.broadcast(parameter.data, 0)
    x, y = torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)
    nn.functional.cross_entropy(model(x), y).backward()
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad)
        parameter.grad /= distributed.get_world_size()


def compare_threads(count: int) -> bool:
    """The threads of PyTorch's own tests, which run their ranks all at once, on CPU tensors."""
    from torch.testing._internal.common_distributed import spawn_threads_and_init_comms

    class Anchor(unittest.TestCase):
        world_size = count

        @spawn_threads_and_init_comms
        def world(self) -> None:
            collective_step(torch.device("cpu"))

    anchor = Anchor("world")
    anchor.world()
    theirs = best_of(10, anchor.world)
    with simgpu.as_cuda(count):

        def world() -> object:
            return simgpu.ranks(count, lambda rank: collective_step(torch.device("cuda", rank)))

        world()
        ours = best_of(10, world)
    print(
        f"world of {count} with a step of collectives: MultiThreadedTestCase {theirs:.1f} ms, "
        f"threads {ours:.1f} ms"
    )
    print(f"  {theirs / ours:.1f} times faster, limit {THREADED_LIMIT}")
    return theirs / ours >= THREADED_LIMIT


def what_is_left(worlds: int, count: int) -> bool:
    """Threads, groups and bytes after many worlds."""

    def counted() -> tuple[int, int, bool, int]:
        gc.collect()
        taken = sum(torch.cuda.memory_allocated(index) for index in range(count))
        groups = len(distributed_groups._communicators)
        return threading.active_count(), groups, distributed.is_initialized(), taken

    def host_memory() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    with simgpu.as_cuda(count):
        for _ in range(worlds // 10):
            in_threads(count)
        before, high = counted(), host_memory()
        begin = time.perf_counter()
        for _ in range(worlds):
            in_threads(count)
        took = time.perf_counter() - begin
        after = counted()
    print(
        f"{worlds} worlds of {count} with a DDP step, {took / worlds * 1e3:.1f} ms each: "
        f"(threads, groups, default group, bytes of devices) {before} before, {after} after; "
        f"the host's highest use grew by {host_memory() - high} MiB"
    )
    return before == after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer ranks, steps and worlds")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    kept = [
        compare_worlds(4),
        compare_threads(4),
        what_is_left(100 if quick else 1000, 2),
        compare_steps([1, 2] if quick else [1, 2, 4, 8], 20 if quick else 60),
    ]
    print("all limits are kept" if all(kept) else "a limit is not kept")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
