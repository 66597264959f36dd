"""`simgpu.ranks`: run a function on every rank of a world, in threads of this process."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed

from simgpu._config.gpus import Names
from simgpu._config.options import RNGS, Memory
from simgpu._core import world
from simgpu._core.operators import began_twice
from simgpu._devices import block
from simgpu._distributed import groups as distributed_groups
from simgpu._distributed.agreement import named_ranks
from simgpu._distributed.thread_transport import GroupCalls, ThreadTransport
from simgpu._explore.schedules.primitives import schedule_existing_locks
from simgpu._explore.schedules.scheduler import Scheduler
from simgpu._explore.schedules.tasks import ThreadEnded
from simgpu._ranks import groups, rank_state
from simgpu._ranks.rank_scheduler import RankScheduler, scheduler_of
from simgpu._util import naming
from simgpu._util.naming import MAX_DEVICES, plural
from simgpu._util.patching import Patches

T = TypeVar("T")

# What is replaced for as long as a world lasts, in this order.
FILES = (groups, rank_state)
_one_at_a_time = threading.Lock()


def ranks(
    count: int,
    function: Callable[[int], T],
    *,
    backend: str | None = "nccl",
    schedule: int | str | None = None,
    memory: Memory = None,
    model: Names = None,
    rng: str | None = None,
) -> list[T]:
    """Call `function(rank)` on each rank of a new world of torch.distributed; return the results.

    The ranks are threads of this process. One runs at a time, until it has to wait for others. Each
    rank has `cuda:rank` as its current device, and its own process groups, random numbers, PyTorch
    settings and environment variables of torchrun. They share everything else, such as globals.
    `sys.exit(0)` ends a rank with the result None. The default group is there when `function` is
    called, and is destroyed afterwards.

    Args:
        count: how many ranks, 1 to 64.
        function: called with a rank, from 0.
        backend: as in `torch.distributed.init_process_group`.
        schedule: a seed for the order of the ranks, or the token of such an order; by default ranks
            run one after the other. With it, ranks switch not only at collectives but at each yield
            point of `simgpu.schedule`, as with `strategy="random"`. Within a block of
            `simgpu.schedule` that schedule decides, and this argument has no effect.
        memory: of the fresh devices, as in `simgpu.devices`.
        model: of the fresh devices, as in `simgpu.devices`.
        rng: of the fresh devices, as in `simgpu.devices`.

    Without devices there are `count` fresh CUDA devices. Within `simgpu.as_cuda(n)` the
    ranks have its devices; within `simgpu.devices(n)` too, for every backend but NCCL. Worlds of
    several threads come one after the other.

    An error that a rank raises ends the world and comes out here, with those of the other ranks as
    notes.

    Raises:
        DeadlockError: no rank can go on; the text says what each one waits for, and in which line.
        CollectiveMismatchError: the ranks made different calls, or one that others left out.
        TypeError: `function` is a coroutine or a generator.
        ValueError: there are fewer devices than ranks, or some already where a sort of them is
            asked for; or `schedule`, `memory`, `model` or `rng` is none.
        RuntimeError: NCCL, on devices that are not called cuda.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_DEVICES:
        raise ValueError(
            f"the number of ranks must be an integer from 1 to {MAX_DEVICES}, got {count!r}"
        )
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(kind(each) for kind in kinds for each in (function, type(function).__call__)):
        raise TypeError(
            f"expected a function that runs the rank, got {function!r}, which returns a coroutine "
            "or a generator: wrap it, as in lambda rank: asyncio.run(f(rank))"
        )
    if world.this_rank() is not None:
        raise RuntimeError(f"rank {world.rank_number()} of a world cannot start another world")
    with contextlib.ExitStack() as ends:
        ends.enter_context(_one_at_a_time)  # worlds that threads start run one after the other
        if not world.device_count():
            fresh = block.as_cuda(count, memory=memory, model=model, rng=rng or RNGS[0])
            ends.enter_context(fresh)
        else:
            _check_devices(backend, memory=memory, model=model, rng=rng)
        if world.device_count() < count:
            raise ValueError(
                f"{count} ranks need {count} devices, one each, and the block around them has "
                f"{plural(world.device_count(), 'device')}: make more, or ask for fewer ranks"
            )
        patches = Patches()
        ends.callback(patches.undo)
        for file in FILES:
            patches.apply(file.PATCHES)
        before = rank_state.State()
        ends.callback(before.restore)
        scheduler = ends.enter_context(scheduler_of(schedule))
        ends.enter_context(schedule_existing_locks(function))
        return _World(count, function, backend, scheduler).results()


def _check_devices(backend: str | None, **wanted: Any) -> None:
    """Raise where the devices that are there already are not what a world asks for."""
    given = [f"{name}={value!r}" for name, value in wanted.items() if value is not None]
    if given:
        raise ValueError(
            f"{', '.join(given)} only applies to new devices, but {world.device_count()} already "
            "exist: pass it where they are created, or create none before"
        )
    if "nccl" in (backend or "").lower() and "cuda" not in naming.names:
        raise RuntimeError(
            f"backend {backend!r} needs devices that are used as CUDA, and the present ones are "
            "not: make them by simgpu.as_cuda(n) or simgpu.enable(n, as_cuda=True), or make none "
            'before simgpu.ranks, or pass backend="gloo"'
        )


class _World:
    """One run of all ranks."""

    def __init__(
        self, count: int, function: Callable[[int], Any], backend: str | None, scheduler: Scheduler
    ) -> None:
        self._count, self._function, self._backend = count, function, backend
        self._scheduler = RankScheduler(scheduler)
        self._group_calls = GroupCalls()
        self._store: Any = vars(distributed)["HashStore"]()
        self._results: list[Any] = [None] * count

    def results(self) -> list[Any]:
        count = self._count
        try:
            self._scheduler.run(
                self._rank, [rank_state.State.of_rank(rank, count) for rank in range(count)]
            )
            error = self._error()
            if error is not None:
                raise error
            self._group_calls.check_end()
            return self._results
        finally:
            error = None  # or its frames, of which this is one, would keep each other
            # A Work of several outputs lives until these are gone, and leads to both.
            self._scheduler.forget()
            self._group_calls.forget()

    def _rank(self, rank: int) -> None:
        transport = functools.partial(
            ThreadTransport, self._group_calls, self._scheduler, groups.life, rank
        )
        world.set_rank(
            world.Rank(rank, self._count, self._scheduler, self._store, transport, groups.Groups())
        )
        try:
            self._scheduler.check()  # Ctrl-C: who has not begun does not begin any more
            world.set_current_device(rank)
            distributed.init_process_group(
                self._backend, rank=rank, world_size=self._count, store=self._store
            )
            self._results[rank] = self._function(rank)
        except ThreadEnded:  # the schedule is over
            raise
        except SystemExit as end:
            if end.code is not None and (end.code != 0 or not isinstance(end.code, int)):
                self._scheduler.failures[rank] = end
        except BaseException as error:
            self._scheduler.failures[rank] = error
        finally:
            self._end_groups(rank)
            world.set_rank(None)

    def _end_groups(self, rank: int) -> None:
        try:
            distributed_groups.release()
            groups.end()
            distributed_groups.forget()
            rank_state.clear_sharding_cache()
        except BaseException as error:
            self._scheduler.failures.setdefault(rank, error)

    def _error(self) -> BaseException | None:
        """What the first rank raised by itself, with a note of what became of the others."""
        scheduler, failures = self._scheduler, self._scheduler.failures
        own = {rank: error for rank, error in failures.items() if not scheduler.is_stop(error)}
        first = next(iter(own or failures), None)
        if first is None:
            return None
        error = failures[first]
        notes = [f"raised by rank {first} of {self._count}"]
        if began_twice(error):  # a function that was written for a process of its own
            notes.append(
                "simgpu.ranks has made the default group of this rank: leave init_process_group "
                "out, or call torch.distributed.destroy_process_group() before it"
            )
        if isinstance(error, TypeError) and _is_of_the_call(error):
            notes.append("simgpu.ranks calls the function with the rank: write def fn(rank)")
        others = {rank: other for rank, other in own.items() if other is not error}
        alike = [rank for rank, other in others.items() if str(other) == str(error)]
        if alike:
            have = "have" if len(alike) > 1 else "has"
            notes.append(f"{named_ranks(sorted(alike))} {have} raised the same error")
        notes += [
            f"rank {rank} has raised {type(other).__name__}: {other}"
            for rank, other in others.items()
            if rank not in alike
        ]
        if scheduler.stopped is not None and own:
            notes.append(str(scheduler.stopped))
        if hasattr(error, "add_note"):  # from Python 3.11 on
            for note in notes:
                error.add_note(note)
        return error


def _is_of_the_call(error: BaseException) -> bool:
    """Whether the function has not begun: the innermost frame is that of the call."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    return innermost.f_code is _World._rank.__code__
