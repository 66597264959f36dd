"""The plugin's command-line options, read into one value for the session.

PYTEST_DONT_REWRITE: simgpu.pytest_plugin imports it before pytest does, which would warn of that.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from simgpu._config import options as config_options
from simgpu._config.options import ASYNCHRONOUS, OPTIONS, DeviceOptions
from simgpu._util.naming import MAX_DEVICES


@dataclass(frozen=True)
class Worker:
    """One of `count` processes."""

    index: int
    count: int


DEFAULT_COUNT = 8
DEFAULT_SIZE = 2  # of the groups of real GPUs that workers of pytest-xdist have
names: set[str] = set()  # of all options below, once they are added


@dataclass(frozen=True)
class SessionOptions:
    """The options of one session, and which worker of pytest-xdist reads them."""

    kind: str = "auto"
    """"simgpu", "cuda", or "auto": real GPUs where there are two."""
    count: int | None = None
    oversubscribe: bool = False
    """Many slots that all name cuda:0."""
    per_worker: int | None = None
    """Real GPUs for each worker of pytest-xdist."""
    worker: Worker | None = None
    """This process, if it is a worker."""
    as_cuda: bool = False
    faults: str | None = None
    """"oom": each test also with every allocation failing."""
    schedules: int | None = None
    """Under how many schedules each test runs."""
    schedule: str | None = None
    """The token of the one schedule that the tests run under."""
    races: bool = False
    """Whether a test fails where streams, or a stream and the host, race."""
    lazy: bool = False
    """Whether kernels and copies run when something waits for them, in the lazy order."""
    async_seed: int | None = None
    """The same, in the orders of this seed."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Of `OPTIONS`, as far as the command line has them."""
    process_count: int | None = None
    """SIMGPU_DEVICE_COUNT: simulated devices that the process has for as long as it lasts."""

    @property
    def count_or_default(self) -> int:
        return self.count or self.process_count or DEFAULT_COUNT

    @property
    def asynchronous(self) -> bool:
        return self.lazy or self.async_seed is not None

    @property
    def texts(self) -> dict[str, str]:
        """Of `OPTIONS`, what the command line has, or else a variable of the environment."""
        return {**config_options.variables(), **self.given}


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("simgpu", "simgpu: devices for tests")

    add = functools.partial(_add, group)
    add(
        "--devices",
        "kind",
        type=_kind,
        choices=("auto", "simgpu", "cuda"),
        default="auto",
        help="kind of devices: real GPUs (cuda), simulated ones (simgpu), or real ones if there "
        "are at least two (auto, the default)",
    )
    add(
        "--device-count",
        "count",
        type=int,
        metavar="N",
        help=f"number of devices (default: {DEFAULT_COUNT}, or all real GPUs)",
    )
    for name, option in OPTIONS.items():
        add(f"--device-{name}", name, **option.arguments)
    add(
        "--gpus-per-worker",
        "per_worker",
        type=int,
        metavar="N",
        help="number of real GPUs for each worker of pytest-xdist (default: --device-count, or "
        f"{DEFAULT_SIZE})",
    )
    flags = {
        "--oversubscribe": "use the real GPU cuda:0 as N devices, to run multi-device tests on one "
        "GPU",
        "--as-cuda": "run a suite written for CUDA: its CUDA devices are simulated ones",
        "--races": "fail a test in which two streams, or a stream and the host, use the same "
        "memory without synchronization",
    }
    for name, text in flags.items():
        add(name, name[2:].replace("-", "_"), action="store_true", help=text)
    _add_exploring(add)


def _add(group: pytest.OptionGroup, name: str, field: str, **arguments: Any) -> None:
    """Add the option of a field of `SessionOptions`."""
    names.add(name)
    try:  # the suite's own options are in the same namespace, perhaps as "devices" or "as_cuda"
        group.addoption(name, dest=f"simgpu_{field}", **arguments)
    except argparse.ArgumentError:
        raise pytest.UsageError(
            f"another plugin adds the option {name}, which is simgpu's: leave one of them out "
            "(-p no:simgpu, also as addopts)"
        ) from None


def _kind(text: str) -> str:
    """Read the kind of devices; a number is what `simgpu run --devices` takes."""
    if text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text} is no kind of devices (auto, simgpu or cuda): --device-count {text} says how "
            "many there are"
        )
    return text


def _add_exploring(add: Callable[..., None]) -> None:
    """The options that look for more in a test, or run it more than once."""
    add(
        "--faults",
        "faults",
        choices=("oom",),
        help="run each test again for each of its allocations of device memory, and make that "
        "allocation fail (for one test: @pytest.mark.every_oom)",
    )
    add(
        "--schedules",
        "schedules",
        type=int,
        metavar="N",
        help="run each test with N different orders of its threads; a hypothesis test draws an "
        "order with each example (for one test: @pytest.mark.schedules(N))",
    )
    add(
        "--schedule",
        "schedule",
        metavar="TOKEN",
        help="run the tests with one order of threads again; a failure prints its token",
    )
    add("--async", "lazy", **ASYNCHRONOUS["async"])
    add("--async-seed", "async_seed", **ASYNCHRONOUS["async-seed"])


def read_options(config: pytest.Config) -> SessionOptions:
    # What pytest-xdist sends to each of its workers; None in the process that starts them.
    worker_input = getattr(config, "workerinput", None)
    worker = None
    if worker_input:
        # "gw3"; or what the user calls it (`--tx popen//id=NAME`), perhaps without a number.
        number = re.search(r"\d+$", worker_input["workerid"])
        count = worker_input["workercount"]
        worker = Worker(int(number[0]) % count if number else 0, count)
    return options_in(config.option, worker)


def options_in(namespace: argparse.Namespace, worker: Worker | None = None) -> SessionOptions:
    names = {each.name for each in fields(SessionOptions)} - {"given", "worker", "process_count"}
    found = {name: getattr(namespace, f"simgpu_{name}") for name in (*names, *OPTIONS)}
    given = {name: text for name in OPTIONS if (text := found.pop(name)) is not None}
    return SessionOptions(**found, given=given, worker=worker, process_count=process_count())


def process_count() -> int | None:
    """Return SIMGPU_DEVICE_COUNT, which gives every process that imports torch its devices."""
    try:
        return config_options.device_count()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def check(options: SessionOptions) -> None:
    """Raise ``pytest.UsageError`` for what no machine could meet."""
    count, per_worker, process = options.count, options.per_worker, options.process_count
    if count is not None and not 1 <= count <= MAX_DEVICES:
        raise pytest.UsageError(f"--device-count must be from 1 to {MAX_DEVICES}, not {count}")
    if options.schedules is not None and options.schedules < 1:
        raise pytest.UsageError(f"--schedules must be 1 or more, not {options.schedules}")
    if options.schedule is not None:
        from simgpu._explore.schedules.tokens import Replay

        try:
            Replay(options.schedule)
        except ValueError as error:
            raise pytest.UsageError(f"--schedule {options.schedule}: {error}") from None
    if per_worker is not None and per_worker < 1:
        raise pytest.UsageError(f"--gpus-per-worker must be 1 or more, not {per_worker}")
    simulated = options.kind != "cuda" and not options.oversubscribe
    if options.asynchronous and not simulated:
        raise pytest.UsageError("--async is for simulated devices, not for real GPUs")
    if process and simulated and (count or process) != process:
        raise pytest.UsageError(
            f"SIMGPU_DEVICE_COUNT={process} gives this process its devices, and --device-count "
            f"asks for {count}: leave out one of them"
        )
    for name in options.given:
        if process and options.worker is None and not options.as_cuda:
            raise pytest.UsageError(
                "SIMGPU_DEVICE_COUNT gives this process its devices: say "
                f"{config_options.VARIABLES[name]}, not --device-{name}"
            )
        if not simulated:
            raise pytest.UsageError(f"--device-{name} is for simulated devices, not for real GPUs")
    if simulated:
        said_by = {name: f"--device-{name} {text}" for name, text in options.given.items()}
        try:
            DeviceOptions.of_texts(options.count_or_default, options.texts, said_by)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None, object, object]:
    try:
        return (yield)
    except argparse.ArgumentError as error:  # in one line: a conftest adds an option of our name
        taken = names.intersection((error.argument_name or "").split("/"))
        if not taken:
            raise
        raise pytest.UsageError(
            f"a conftest.py adds the option {', '.join(sorted(taken))}, which is simgpu's: rename "
            "it there, or leave simgpu's plugin out (-p no:simgpu, also as addopts)"
        ) from None
