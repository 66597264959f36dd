"""Pools of devices, real or simulated, and the choice of one for the session's options.

A pool has a `count`, and says whether all of them are `distinct`. It can `describe()` itself for
the header line, and `lend(count, scope)` devices in a fresh state, for the length of a test, module
or session. Another kind of device is another such class, and one more line in `choose_pool`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import pytest

from simgpu._config import options as config_options
from simgpu._config.gpus import models_of
from simgpu._config.options import RNGS
from simgpu._pytest.options import DEFAULT_SIZE, SessionOptions, Worker, read_options
from simgpu._util.naming import plural

if TYPE_CHECKING:
    import torch


Scope = Literal["session", "module", "function"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # from the widest


def fixture_name(scope: Scope) -> str:
    """Return the fixture that lends devices for this long."""
    return "devices" if scope == "function" else f"{scope}_devices"


class CudaPool:
    """Real GPUs by ordinal; the same ordinal several times means an oversubscribed GPU.

    `seed` is that of every test, other for each worker; `sharers` processes use these GPUs, each
    with its part of the memory.
    """

    def __init__(self, ordinals: Sequence[int], seed: int = 0, sharers: int = 1) -> None:
        self.ordinals = tuple(ordinals)
        self.seed = seed
        self.sharers = sharers
        self.count = len(self.ordinals)
        self.distinct = len(set(self.ordinals)) == self.count

    def describe(self) -> str:
        if self.distinct:
            return f"{plural(self.count, 'real GPU')} (cuda)"
        return (
            f"{plural(self.count, 'slot')} on cuda:{self.ordinals[0]} (oversubscribed: real "
            "kernels, streams and reductions, but no copies between GPUs)"
        )

    @contextlib.contextmanager
    def lend(self, count: int, scope: Scope = "function") -> Iterator[list[torch.device]]:
        import torch

        devices = [torch.device("cuda", ordinal) for ordinal in self.ordinals[:count]]
        torch.cuda.init()  # type: ignore[no-untyped-call]  # counters of memory need it
        torch.cuda.set_device(devices[0])
        torch.manual_seed(self.seed)
        for device in set(devices):
            if self.sharers > 1:
                torch.cuda.set_per_process_memory_fraction(1 / self.sharers, device)
            torch.cuda.reset_peak_memory_stats(device)
        try:
            yield devices
        finally:
            for device in set(devices):
                torch.cuda.synchronize(device)
            torch.cuda.empty_cache()


def gpu_count() -> int:
    """Return the number of real GPUs that torch can use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


# The pool of simulated devices: made anew for each test, or the first of those that are there.
#
# They are there already under --as-cuda and SIMGPU_DEVICE_COUNT, under `session_devices` and
# `module_devices`, and where a suite's own fixture is within `with simgpu.devices(n)`.


class SimulatedPool:
    """Up to `count` simulated GPUs for a test.

    Args:
        arguments: memory, model and rng of each, as `simgpu.devices` takes them.
        source: what made them for the whole process, for the header: "as cuda".
        order: in which order their kernels run, for the header, where that is not at once.
    """

    distinct = True

    def __init__(
        self,
        count: int,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        source: str | None = None,
        order: str | None = None,
    ) -> None:
        self.count, self.arguments, self.source, self.order = count, arguments, source, order
        self._scopes: list[Scope] = []  # of the fixtures that hold devices now

    def describe(self) -> str:
        words = f"{plural(self.count, 'simulated GPU')}"
        if "memory" in self.arguments:
            memory = self.arguments["memory"]
            words += f" of {memory if isinstance(memory, str) else ', '.join(memory)}"
        if "model" in self.arguments:
            models = models_of(self.count, self.arguments["model"])
            words += f", model {', '.join(dict.fromkeys(model.name for model in models))}"
        rng = self.arguments.get("rng", RNGS[0])
        if rng != RNGS[0]:
            words += f", rng {rng}"
        if self.order:
            words += f", asynchronous {self.order}"
        return f"{words} (simgpu{f', {self.source}' if self.source else ''})"

    def sort(self, count: int) -> dict[str, Any]:
        """Of which sort `count` of them are, as arguments of `simgpu.devices`."""
        return {
            name: value[:count] if isinstance(value, list) else value
            for name, value in self.arguments.items()
        }

    @contextlib.contextmanager
    def lend(self, count: int, scope: Scope = "function") -> Iterator[list[torch.device]]:
        import torch  # noqa: F401  # which makes the devices of SIMGPU_DEVICE_COUNT

        from simgpu._core import world

        if self._scopes and SCOPES.index(scope) < SCOPES.index(self._scopes[-1]):
            inner, outer = fixture_name(self._scopes[-1]), fixture_name(scope)
            pytest.fail(
                f"{outer} are asked for while {inner} are in use, which end before them: ask for "
                f"only {outer}, or first",
                pytrace=False,
            )
        active = world.device_count()
        lent = _share(count, active) if active else self._make(count, scope)
        with lent as devices:
            self._scopes.append(scope)
            try:
                yield devices
            finally:
                self._scopes.remove(scope)

    @contextlib.contextmanager
    def _make(self, count: int, scope: Scope) -> Iterator[list[torch.device]]:
        import torch

        import simgpu

        with simgpu.devices(count, **self.sort(count)) as devices:
            explain_devices(
                f"pytest's fixture {fixture_name(scope)} made them: use its devices, or do without "
                "the fixture"
            )
            # The devices are seeded; torch.manual_seed would format the stack for every backend.
            torch.default_generator.manual_seed(0)
            yield list(devices)


def explain_devices(hint: str, created_by: str | None = None) -> None:
    """Name what made the devices that are there, for errors of what asks for others."""
    from simgpu._core import world

    made = world.current_world()
    assert made is not None
    made.hint, made.created_by = hint, created_by


@contextlib.contextmanager
def _share(count: int, active: int) -> Iterator[list[torch.device]]:
    """Lend the first of the devices that are there, in a state as fresh as can be."""
    import torch

    from simgpu._core import world
    from simgpu._util import naming

    if count > active:
        there = world.current_world()
        maker = there and there.created_by
        pytest.fail(
            f"the test asks for {plural(count, 'device')}, and {active} are there already, made "
            + (
                f"by {maker}: say @pytest.mark.devices({active}), or as many ranks"
                if maker
                else "outside of it (by a fixture of yours, or by module_devices): say "
                f"--device-count {active} or @pytest.mark.devices({active}), or take the devices "
                "of the wider fixture from session_devices"
            ),
            pytrace=False,
        )
    kind = "cuda" if "cuda" in naming.names else naming.DEVICE_TYPE
    devices = [torch.device(kind, index) for index in range(count)]
    module = torch.get_device_module(devices[0])
    with world.limited_to(count):
        module.set_device(0)
        torch.manual_seed(0)
        for device in devices:
            module.reset_peak_memory_stats(device)
        yield devices


# How the workers of pytest-xdist share the real GPUs of a machine: plain arithmetic.
#
# GPUs come in groups of `size` neighbours, worker w has group w modulo the number of groups. GPUs
# that fill no group stay idle; where there are more workers than groups, some share one.


class Group(NamedTuple):
    """The GPUs of a worker, and how many workers use them."""

    ordinals: range
    sharers: int


def group_of(worker: Worker, gpus: int, size: int) -> Group:
    """Return the GPUs of a worker on a machine with `gpus` of them, `size` in a group."""
    groups = gpus // size
    mine = worker.index % groups
    sharers = len(range(mine, worker.count, groups))
    return Group(range(mine * size, (mine + 1) * size), sharers)


def describe(workers: int, gpus: int, size: int) -> str:
    """The header's part about the workers, with a notice where they have to share."""
    groups = gpus // size
    each = f"{workers} workers, each with {size} of them"
    if workers <= groups:
        return each
    most = group_of(Worker(0, workers), gpus, size).sharers
    are = "there is only 1 such group" if groups == 1 else f"there are only {groups} such groups"
    return (
        f"{each}; as {are}, up to {most} workers share one, and each has 1/{most} of its memory "
        f"(-n {groups} shares nothing)"
    )


# How many threads torch uses in a worker of pytest-xdist: one, unless the user sets it.
#
# Only where a test asks for devices: the sessions of other suites stay as they are.


def use_one_thread() -> None:
    # xdist already runs one worker per core: more threads in each would only queue for the cores.
    if "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


Pool = CudaPool | SimulatedPool
_SESSION_POOL = pytest.StashKey[Pool]()


def session_pool(config: pytest.Config) -> Pool:
    """Return the pool of this session; the first call chooses it, which may import torch."""
    if _SESSION_POOL not in config.stash:
        options = read_options(config)
        if options.worker is not None:
            use_one_thread()
        config.stash[_SESSION_POOL] = choose_pool(options)
    return config.stash[_SESSION_POOL]


def is_chosen(config: pytest.Config) -> bool:
    return _SESSION_POOL in config.stash


def choose_pool(options: SessionOptions) -> Pool:
    """Return the pool that the options ask for, in a worker of pytest-xdist its own.

    Raises ``pytest.UsageError`` where they cannot be met, saying what there is.
    """
    _check_combination(options)
    if options.oversubscribe:
        if gpu_count() == 0:
            raise pytest.UsageError("--oversubscribe needs a real GPU, and torch finds none here")
        worker = options.worker or Worker(0, 1)
        return CudaPool([0] * options.count_or_default, worker.index, worker.count)
    if options.as_cuda or options.kind == "simgpu" or _only_simulated(options):
        return simulated_pool(options)
    gpus = gpu_count()
    if options.kind == "auto" and options.per_worker is None and gpus < 2:
        return simulated_pool(options)
    return _real_gpus(options, gpus)


def simulated_pool(options: SessionOptions) -> SimulatedPool:
    """Return the pool of a session on simulated devices."""
    count, source = options.count_or_default, "as cuda" if options.as_cuda else None
    if options.process_count and not options.as_cuda:
        count, source = options.process_count, f"by {config_options.COUNT}"
    order = None
    if options.asynchronous:
        seed = options.async_seed
        order = "in the lazy order" if seed is None else f"in an order of seed {seed}"
    return SimulatedPool(count, config_options.arguments(options.texts), source, order)


def needs_no_torch(options: SessionOptions) -> bool:
    """Whether the pool is known already; else torch has to count the GPUs for it."""
    named = options.kind != "auto" or options.oversubscribe or options.per_worker is not None
    return named or options.as_cuda or _only_simulated(options)


def _only_simulated(options: SessionOptions) -> bool:
    """Whether a session asks for something that only simulated devices have."""
    asked = options.process_count or options.texts or options.asynchronous
    return options.kind == "auto" and bool(asked)


def group_size(options: SessionOptions, gpus: int) -> int:
    """Return how many of `gpus` real GPUs a worker of pytest-xdist has."""
    return min(options.per_worker or options.count or DEFAULT_SIZE, gpus)


def _check_combination(options: SessionOptions) -> None:
    """Raise for options that contradict each other on every machine."""
    per_worker, count = options.per_worker, options.count
    if per_worker is not None and (options.kind == "simgpu" or options.oversubscribe):
        raise pytest.UsageError(
            "--gpus-per-worker divides real GPUs among workers: it cannot be combined with "
            f"{'--oversubscribe' if options.oversubscribe else '--devices simgpu'}"
        )
    if per_worker is not None and count is not None and count > per_worker:
        raise pytest.UsageError(
            f"--device-count {count} asks for more than --gpus-per-worker {per_worker} gives"
        )
    if options.oversubscribe and options.kind == "simgpu":
        raise pytest.UsageError(
            "--oversubscribe puts several slots on one real GPU: it cannot be combined with "
            "--devices simgpu, which has as many devices as --device-count asks for"
        )


def _real_gpus(options: SessionOptions, gpus: int) -> Pool:
    """Return all GPUs that are asked for; in a worker of pytest-xdist those of its group."""
    count, per_worker = options.count, options.per_worker
    if per_worker is not None and per_worker > gpus:
        raise pytest.UsageError(
            f"--gpus-per-worker {per_worker} asks for more than the {plural(gpus, 'GPU')} here"
        )
    if gpus == 0:
        raise pytest.UsageError(
            "--devices cuda needs a real GPU, and torch finds none here; "
            "--devices simgpu runs the same tests on simulated ones"
        )
    if options.kind == "cuda" and count is not None and count > gpus:
        raise pytest.UsageError(
            f"--device-count {count} asks for more than the {plural(gpus, 'GPU')} here; "
            "--oversubscribe puts any number of slots on cuda:0"
        )
    if options.worker is None:
        return CudaPool(range(min(options.count_or_default, gpus)))
    group = group_of(options.worker, gpus, group_size(options, gpus))
    return CudaPool(group.ordinals[:count], options.worker.index, group.sharers)
