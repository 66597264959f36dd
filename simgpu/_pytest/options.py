"""The plugin's command-line options, read into one value for the session.

PYTEST_DONT_REWRITE: simgpu.pytest_plugin imports it before pytest does, which would warn of that.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest

from simgpu._config import options as config_options
from simgpu._config.options import RNGS, DeviceOptions
from simgpu._util.naming import MAX_DEVICES

# How the workers of pytest-xdist share the real GPUs of a machine: plain arithmetic.
#
# GPUs come in groups of `size` neighbours, worker w has group w modulo the number of groups. GPUs
# that fill no group stay idle; where there are more workers than groups, some share one.

DEFAULT_SIZE = 2


@dataclass(frozen=True)
class Worker:
    """One of `count` processes."""

    index: int
    count: int


@dataclass(frozen=True)
class Group:
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


DEFAULT_COUNT = 8
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
    memory: str | None = None
    """What each simulated device has; with commas one size per device. None: what the variable
    of the environment says, as for the next two."""
    model: str | None = None
    """Which GPU each simulated device says that it is; with commas one per device."""
    rng: str | None = None
    """What draws random numbers on simulated devices."""
    process_count: int | None = None
    """SIMGPU_DEVICE_COUNT: simulated devices that the process has for as long as it lasts."""

    @property
    def count_or_default(self) -> int:
        return self.count or self.process_count or DEFAULT_COUNT

    @property
    def asynchronous(self) -> bool:
        return self.lazy or self.async_seed is not None

    @property
    def given(self) -> dict[str, str]:
        """Memory, model and rng of simulated devices, as far as an option has them."""
        found = {"memory": self.memory, "model": self.model, "rng": self.rng}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def texts(self) -> dict[str, str]:
        """The same by an option, or else by a variable of the environment."""
        return {**config_options.variables(), **self.given}


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("simgpu", "devices of the `devices` fixture")

    add = functools.partial(_add, group)
    add(
        "--devices",
        type=_kind,
        choices=("auto", "simgpu", "cuda"),
        default="auto",
        help="real GPUs, simulated ones, or (auto, the default) real ones where there are two",
    )
    add(
        "--device-count",
        type=int,
        metavar="N",
        help=f"how many devices a test can have (default: {DEFAULT_COUNT}, or the GPUs here)",
    )
    add(
        "--device-memory",
        metavar="SIZE[,SIZE...]",
        help="what each simulated device has, such as 2GiB; with commas one size per device "
        "(default: what the model has, or 16GiB)",
    )
    add(
        "--device-model",
        metavar="NAME[,NAME...]",
        help="which GPU each simulated device says that it is, such as A100; with commas one per "
        "device; also --model, where the suite has no option of that name",
    )
    add(
        "--device-rng",
        choices=RNGS,
        help="what draws random numbers: CUDA's generator (default) or the host's; also --rng",
    )
    add(
        "--oversubscribe",
        action="store_true",
        help="N slots that all name cuda:0, so that one real GPU runs multi-device tests",
    )
    add(
        "--gpus-per-worker",
        type=int,
        metavar="N",
        help="real GPUs for each worker of pytest-xdist (default: "
        f"--device-count, or {DEFAULT_SIZE})",
    )
    add(
        "--as-cuda",
        action="store_true",
        help="name simulated devices cuda, for suites written for CUDA",
    )
    _add_exploring(add)


def _add(group: pytest.OptionGroup, name: str, **arguments: Any) -> None:
    names.add(name)
    # The suite's own options are in the same namespace, perhaps as "devices" or "as_cuda".
    dest = f"simgpu_{name[2:].replace('-', '_')}"
    try:
        group.addoption(name, dest=dest, **arguments)
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
        "--races",
        action="store_true",
        help="fail a test where two streams, or a stream and the host, use the same memory and "
        "nothing puts them in order",
    )
    add(
        "--faults",
        choices=("oom",),
        help="run each test once more for each allocation of simulated memory in it, which fails "
        "that time (on one test: @pytest.mark.every_oom)",
    )

    add(
        "--schedules",
        type=int,
        metavar="N",
        help="run each test under N schedules of its threads, and a property of hypothesis under "
        "one that it draws with its examples (on one test: @pytest.mark.schedules(N))",
    )
    add(
        "--schedule",
        metavar="TOKEN",
        help="run the tests under the schedule of this token, which a failure has printed",
    )
    add(
        "--async",
        action="store_true",
        help="run kernels and copies of simulated devices when something waits for them, and "
        "no earlier, as streams of a GPU may: code that forgets to wait computes NaN or old values",
    )
    add(
        "--async-seed",
        type=int,
        metavar="SEED",
        help="the same, in a legal order that this number draws",
    )


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
    return SessionOptions(
        kind=namespace.simgpu_devices,
        count=namespace.simgpu_device_count,
        oversubscribe=namespace.simgpu_oversubscribe,
        per_worker=namespace.simgpu_gpus_per_worker,
        worker=worker,
        as_cuda=namespace.simgpu_as_cuda,
        faults=namespace.simgpu_faults,
        schedules=namespace.simgpu_schedules,
        schedule=namespace.simgpu_schedule,
        races=namespace.simgpu_races,
        lazy=namespace.simgpu_async,
        async_seed=namespace.simgpu_async_seed,
        memory=namespace.simgpu_device_memory,
        model=namespace.simgpu_device_model,
        rng=namespace.simgpu_device_rng,
        process_count=process_count(),
    )


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


# A conftest that adds an option of our name: one line of error in place of a traceback.


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None, object, object]:
    try:
        return (yield)
    except argparse.ArgumentError as error:
        taken = names.intersection((error.argument_name or "").split("/"))
        if not taken:
            raise
        raise pytest.UsageError(
            f"a conftest.py adds the option {', '.join(sorted(taken))}, which is simgpu's: rename "
            "it there, or leave simgpu's plugin out (-p no:simgpu, also as addopts)"
        ) from None
