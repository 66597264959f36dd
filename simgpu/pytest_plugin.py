"""The pytest plugin: the ``devices`` fixture, on real GPUs or on simulated ones.

Everything pytest sees is here: the options, the marker, the fixture, the header line. What a kind
of device is to a session is a :class:`Pool` (three short methods); another way of sharing GPUs,
is another pool and one more line in :func:`choose_pool`. Under pytest-xdist each worker has its
own group of real GPUs (`_gpu_groups`).

The plugin is loaded in every pytest session of an environment that has simgpu installed, so it
imports torch only when a test (or an option naming real GPUs) needs it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol

import pytest

from simgpu._gpu_groups import DEFAULT_SIZE, Worker, describe, group_of

if TYPE_CHECKING:
    import torch

# The option --as-cuda, for suites that name CUDA and no fixture of ours.
pytest_plugins = ["simgpu.pytest_as_cuda"]

DEFAULT_COUNT = 8
MAX_COUNT = 64

# Where an NVIDIA or AMD driver shows itself: lets the header answer without importing torch.
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", r"C:\Windows\System32\nvcuda.dll")


class Pool(Protocol):
    """The devices of a session, and how one test borrows some of them."""

    count: int
    distinct: bool

    def describe(self) -> str:
        """Return the words of the header line."""

    def lend(self, count: int) -> contextlib.AbstractContextManager[list[torch.device]]:
        """Give `count` devices in a fresh state for the length of one test."""


class SimulatedPool:
    """`count` simulated GPUs, made anew for each test."""

    distinct = True

    def __init__(self, count: int) -> None:
        self.count = count

    def describe(self) -> str:
        return f"{_plural(self.count, 'simulated GPU')} (simgpu)"

    @contextlib.contextmanager
    def lend(self, count: int) -> Iterator[list[torch.device]]:
        import torch

        import simgpu

        with simgpu.devices(count) as devices:
            # The devices are seeded; torch.manual_seed would format the stack for every backend.
            torch.default_generator.manual_seed(0)
            yield list(devices)


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
            return f"{_plural(self.count, 'real GPU')} (cuda)"
        return (
            f"{_plural(self.count, 'slot')} on cuda:{self.ordinals[0]} (oversubscribed: real "
            "kernels, streams and reductions, but no copies between GPUs)"
        )

    @contextlib.contextmanager
    def lend(self, count: int) -> Iterator[list[torch.device]]:
        import torch

        devices = [torch.device("cuda", ordinal) for ordinal in self.ordinals[:count]]
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


def choose_pool(
    kind: str,
    count: int | None,
    oversubscribe: bool,
    per_worker: int | None = None,
    worker: Worker | None = None,
) -> Pool:
    """Return the pool that the options ask for, in a worker of pytest-xdist its own.

    Raises ``pytest.UsageError`` where they cannot be met, saying what there is.
    """
    if per_worker is not None and (kind == "simgpu" or oversubscribe):
        raise pytest.UsageError(
            "--gpus-per-worker divides real GPUs among workers: it cannot be combined with "
            f"{'--oversubscribe' if oversubscribe else '--devices simgpu'}"
        )
    if per_worker is not None and count is not None and count > per_worker:
        raise pytest.UsageError(
            f"--device-count {count} asks for more than --gpus-per-worker {per_worker} gives"
        )
    if oversubscribe:
        if kind == "simgpu":
            raise pytest.UsageError(
                "--oversubscribe puts several slots on one real GPU: it cannot be combined with "
                "--devices simgpu, which has as many devices as --device-count asks for"
            )
        if gpu_count() == 0:
            raise pytest.UsageError("--oversubscribe needs a real GPU, and torch finds none here")
        alone = worker or Worker(0, 1)
        return CudaPool([0] * (count or DEFAULT_COUNT), alone.index, alone.count)
    if kind == "simgpu":
        return SimulatedPool(count or DEFAULT_COUNT)
    here = gpu_count()
    if per_worker is not None and per_worker > here:
        raise pytest.UsageError(
            f"--gpus-per-worker {per_worker} asks for more than the {_plural(here, 'GPU')} here"
        )
    if kind == "auto" and here < 2 and per_worker is None:
        return SimulatedPool(count or DEFAULT_COUNT)
    if here == 0:
        raise pytest.UsageError(
            "--devices cuda needs a real GPU, and torch finds none here; "
            "--devices simgpu runs the same tests on simulated ones"
        )
    if kind == "cuda" and count is not None and count > here:
        raise pytest.UsageError(
            f"--device-count {count} asks for more than the {_plural(here, 'GPU')} here; "
            "--oversubscribe puts any number of slots on cuda:0"
        )
    if worker is None:
        return CudaPool(range(min(count or DEFAULT_COUNT, here)))
    group = group_of(worker, here, _group_size(count, per_worker, here))
    return CudaPool(group.ordinals[:count], worker.index, group.sharers)


def _group_size(count: int | None, per_worker: int | None, here: int) -> int:
    return min(per_worker or count or DEFAULT_SIZE, here)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simgpu", "devices of the `devices` fixture")
    group.addoption(
        "--devices",
        choices=("auto", "simgpu", "cuda"),
        default="auto",
        help="real GPUs, simulated ones, or (auto, the default) real ones where there are two",
    )
    group.addoption(
        "--device-count",
        type=int,
        metavar="N",
        help=f"how many devices a test can have (default: {DEFAULT_COUNT}, or the GPUs here)",
    )
    group.addoption(
        "--oversubscribe",
        action="store_true",
        help="N slots that all name cuda:0, so that one real GPU runs multi-device tests",
    )
    group.addoption(
        "--gpus-per-worker",
        type=int,
        metavar="N",
        help="real GPUs for each worker of pytest-xdist (default: "
        f"--device-count, or {DEFAULT_SIZE})",
    )


_POOL = pytest.StashKey[Pool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "devices(count, distinct=False, at_least=False): the test has exactly `count` devices, or "
        "with at_least=True all that there are, if not fewer; distinct=True when they must be "
        "different GPUs, which an oversubscribed GPU cannot be.",
    )
    if hasattr(config, "workerinput"):
        _use_one_thread()
    kind, count, oversubscribe, *_ = _options(config)
    if count is not None and not 1 <= count <= MAX_COUNT:
        raise pytest.UsageError(f"--device-count must be from 1 to {MAX_COUNT}, not {count}")
    per_worker = config.getoption("--gpus-per-worker")
    if per_worker is not None and per_worker < 1:
        raise pytest.UsageError(f"--gpus-per-worker must be 1 or more, not {per_worker}")
    # `auto` waits for the first test that needs it, because only torch can count the GPUs.
    if kind != "auto" or oversubscribe or per_worker is not None:
        config.stash[_POOL] = choose_pool(*_options(config))


def pytest_report_header(config: pytest.Config) -> str:
    simulated = SimulatedPool(config.getoption("--device-count") or DEFAULT_COUNT)
    if _POOL in config.stash or "torch" in sys.modules:
        return f"devices: {_pool(config).describe()}{_sharing(config, _pool(config))}"
    if any(map(os.path.exists, _DRIVER_FILES)):
        return f"devices: real GPUs if torch finds two or more, else {simulated.describe()}"
    return f"devices: {simulated.describe()}"


def _sharing(config: pytest.Config, pool: Pool) -> str:
    """Return what is to be said of the workers that this process is going to start."""
    workers = getattr(config.option, "numprocesses", None)
    if not isinstance(pool, CudaPool) or not isinstance(workers, int) or workers < 2:
        return ""
    if not pool.distinct:
        return f"; {workers} workers share it, and each has 1/{workers} of its memory"
    _, count, _, per_worker, _ = _options(config)
    here = gpu_count()
    return f"; {describe(workers, here, _group_size(count, per_worker, here))}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were skipped because there are too few devices."""
    wanted = [
        text
        for report in terminalreporter.stats.get("skipped", [])
        for name, text in report.user_properties
        if name == _WANTED
    ]
    for text in sorted(set(wanted)):
        times = wanted.count(text)
        terminalreporter.write_line(f"{_plural(times, 'test')} skipped, for each {text}")


_WANTED = "devices wanted"


@pytest.fixture
def devices(request: pytest.FixtureRequest) -> Iterator[list[torch.device]]:
    """The devices of this test, as a list of ``torch.device``.

    As many as ``--device-count`` says, or exactly `n` under ``@pytest.mark.devices(n)``, or no
    fewer than `n` under ``@pytest.mark.devices(n, at_least=True)``. Seeds,
    current device, memory counters and trace start afresh for each test.

    Under hypothesis the list is made once per test and shared by its examples; let each example
    draw its own subset or order of it. Hypothesis warns about any fixture that is shared so, and
    the warning has to be silenced: ``@settings(suppress_health_check=
    [HealthCheck.function_scoped_fixture])``, once in a profile. What an example must not do is
    rely on the state that a former example left on a device.
    """
    pool = _pool(request.config)
    count, distinct, at_least = pool.count, False, False
    marker = request.node.get_closest_marker("devices")
    if marker is not None:
        count, distinct, at_least = _wanted(*marker.args, **marker.kwargs)
    if count > pool.count:
        _skip(request, f"needs {_plural(count, 'device')}, this session has {pool.count}")
    if distinct and not pool.distinct:
        _skip(request, f"needs {count} distinct devices, this session has {pool.describe()}")
    with pool.lend(pool.count if at_least else count) as lent:
        yield lent


def _skip(request: pytest.FixtureRequest, why: str) -> NoReturn:
    request.node.user_properties.append((_WANTED, why))
    pytest.skip(why)


def _wanted(
    count: int, *, distinct: bool = False, at_least: bool = False
) -> tuple[int, bool, bool]:
    return count, distinct, at_least


def _pool(config: pytest.Config) -> Pool:
    if _POOL not in config.stash:
        config.stash[_POOL] = choose_pool(*_options(config))
    return config.stash[_POOL]


def _options(config: pytest.Config) -> tuple[str, int | None, bool, int | None, Worker | None]:
    # What pytest-xdist tells each of its workers; nothing in the process that starts them.
    told = getattr(config, "workerinput", None)
    worker = Worker(int(told["workerid"].lstrip("gw")), told["workercount"]) if told else None
    return (
        config.getoption("--devices"),
        config.getoption("--device-count"),
        config.getoption("--oversubscribe"),
        config.getoption("--gpus-per-worker"),
        worker,
    )


def _use_one_thread() -> None:
    # xdist already runs one worker per core: more threads in each would only queue for the cores.
    if "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
