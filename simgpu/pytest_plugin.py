"""The pytest plugin: the ``devices`` fixture, on real GPUs or on simulated ones.

Everything pytest sees is here: the options, the marker, the fixture, the header line. What a kind
of device is to a session is a :class:`Pool` (three short methods); another way of sharing GPUs,
is another pool and one more line in :func:`choose_pool`. Under pytest-xdist each worker has its
own group of real GPUs (`_gpu_groups`).

The plugin is loaded in every pytest session of an environment that has simgpu installed, so it
imports torch only when a test (or an option naming real GPUs) needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

from simgpu._pytest import pools
from simgpu._pytest.gpu_groups import DEFAULT_SIZE, Worker, describe
from simgpu._pytest.pools import (
    DEFAULT_COUNT,
    DRIVER_FILES,
    MAX_COUNT,
    CudaPool,
    Pool,
    SimulatedPool,
    choose_pool,
    group_size,
    plural,
)

if TYPE_CHECKING:
    import torch


# The option --as-cuda, for suites that name CUDA and no fixture of ours.
pytest_plugins = ["simgpu._pytest.as_cuda"]


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
    if any(map(os.path.exists, DRIVER_FILES)):
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
    here = pools.gpu_count()
    return f"; {describe(workers, here, group_size(count, per_worker, here))}"


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
        terminalreporter.write_line(f"{plural(times, 'test')} skipped, for each {text}")


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
        _skip(request, f"needs {plural(count, 'device')}, this session has {pool.count}")
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
