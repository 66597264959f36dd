"""The sessions of pytest that `simgpu fuzz` and `simgpu replay` start, and their settings."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu._config.options import NAMES
from simgpu._fuzz.tally import sum_tallies

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase


def database_of(where: str) -> ExampleDatabase:
    """Return the store of examples that `--database` names: a folder or a redis:// address."""
    # Not above: pytest warns of plugins that were imported before it, as by `simgpu run -m pytest`.
    import pytest
    from hypothesis.database import DirectoryBasedExampleDatabase

    if not where.startswith(("redis://", "rediss://")):
        return DirectoryBasedExampleDatabase(where)
    try:
        from hypothesis.extra.redis import RedisExampleDatabase

        redis = importlib.import_module("redis")
    except ImportError as error:
        raise pytest.UsageError(
            f"--database {where} needs the redis package: pip install redis"
        ) from error
    try:
        client = redis.Redis.from_url(where)
        client.ping()
    except (ValueError, redis.RedisError) as error:
        raise pytest.UsageError(
            f"--database {where}: no Redis server answers there ({error}); start one, or name a "
            "folder that the machines share"
        ) from error
    return RedisExampleDatabase(client)


# What a campaign passes to the pytest sessions that it starts, in one environment variable.

VARIABLE = "SIMGPU_FUZZ_SETTINGS"
DEFAULT_DATABASE = ".hypothesis/examples"


@dataclass(frozen=True)
class SessionSettings:
    """How long one session of pytest tries examples, on which devices, and where they are kept."""

    folder: str
    """Where each process writes its tally."""
    devices: tuple[int, int]
    """The fewest and the most devices."""
    database: str
    """A folder, or a redis:// address."""
    jobs: int = 1
    examples: int | None = None
    """For each property; None where the time decides."""
    minutes: float | None = None
    """For all properties together; None where the number of examples decides."""
    ranks: tuple[int, int] = (1, 8)
    """The fewest and the most ranks of a world."""
    blob: str | None = None
    """The code of the one example to run again."""
    as_cuda: bool = False
    """Whether the devices answer to the name cuda."""
    kept_alone: bool = False
    """Whether nothing but what the database keeps is run."""

    @property
    def most_examples(self) -> int:
        return self.examples or 10**9  # where the time decides, no number does

    def seconds(self, properties: int) -> float | None:
        """Return the time of each of so many properties; None where no time is set.

        One property runs in one process, also where there are more.
        """
        if self.minutes is None:
            return None
        return self.minutes * 60 * self.jobs / max(self.jobs, properties)

    @classmethod
    def from_environment(cls) -> SessionSettings:
        """Read the settings in a process that a campaign has started."""
        settings = json.loads(os.environ[VARIABLE])
        return cls(**settings | {name: tuple(settings[name]) for name in ("devices", "ranks")})

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that reads the settings and makes its own devices."""
        return {**without_process_devices(), VARIABLE: json.dumps(dataclasses.asdict(self))}


def without_process_devices() -> dict[str, str]:
    """Return the environment without what would give a process devices for its whole life."""
    return {name: value for name, value in os.environ.items() if name not in NAMES}


def absolute_database(database: str) -> str:
    """Return the same database for processes that may work in another folder."""
    return database if "://" in database else os.path.abspath(database)


def range_text(numbers: tuple[int, int]) -> str:
    """Return a range as --devices takes it."""
    low, high = numbers
    return str(low) if low == high else f"{low}..{high}"


PLUGIN = "simgpu._fuzz.session_plugin"
_NO_TESTS = 5  # what pytest ends with where nothing was left to run; it need not be installed here


def pytest_command(settings: SessionSettings, arguments: Sequence[str]) -> list[str]:
    """Return the command of a pytest session with the plugin; `settings` has its environment."""
    own = _pytest(settings.folder, settings.devices, settings.as_cuda)
    return [*own, "-p", PLUGIN, *arguments]


def _pytest(folder: str, devices: tuple[int, int], as_cuda: bool) -> list[str]:
    """pytest on simulated devices, with a cache of its own.

    It may not go without one: a suite's `addopts` may have an option of the cache, such as --ff.
    They may also shut our plugin out (-p no:simgpu), as PYTEST_DISABLE_PLUGIN_AUTOLOAD does.
    """
    words = [sys.executable, "-m", "pytest", "-p", "simgpu", "--devices", "simgpu"]
    words += ["--as-cuda"] if as_cuda else []
    return [*words, "--device-count", str(devices[1]), "-o", f"cache_dir={Path(folder) / 'cache'}"]


def _status_of(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a session, whose exit status is returned; Ctrl-C, which it gets too, is its own."""
    with subprocess.Popen(words, env=environment) as session:
        while True:
            try:
                return session.wait()
            except KeyboardInterrupt:  # pytest says where it was, and ends
                continue


def replay_schedule(name: str, token: str, devices: tuple[int, int], as_cuda: bool) -> int:
    """Run the test `name` under the schedule of `token`; returns pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*_pytest(folder, devices, as_cuda), "--schedule", token, name]
        status = _status_of(words, without_process_devices())
    if status == 0:
        print(
            f"{name} passes now: in the order of {token}, or in the plain one where its threads "
            "make other choices now"
        )
    return status


def replay(
    name: str,
    blob: str | None,
    devices: tuple[int, int],
    database: str,
    ranks: tuple[int, int] = (1, 8),
    schedules: bool = False,
    as_cuda: bool = False,
) -> int:
    """Run one example of the property `name` again, with pytest's own output.

    Args:
        name: the property's node id, such as tests/test_x.py::test_x.
        blob: the example's code; without one, hypothesis takes the example from `database`.
        schedules: whether the example has drawn the order of its threads too.

    Returns pytest's exit status, or 4 where the database has no example of the property.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = SessionSettings(
            folder,
            devices,
            absolute_database(database),
            examples=1,
            blob=blob,
            kept_alone=blob is None,
            ranks=ranks,
            as_cuda=as_cuda,
        )
        command = pytest_command(settings, [name, *(["--schedules", "1"] if schedules else [])])
        status = _status_of(command, settings.environment())
        if status == 0 and not sum_tallies(Path(folder)).examples:
            print(
                f"no example was run: {settings.database} keeps none of {name}. Copy the whole "
                "command from the report, or say the campaign's --database"
            )
            return 4
        if status == 0:
            print(f"{name} passes now, with --devices {range_text(devices)}")
        if status == _NO_TESTS:
            print(
                f"{name} is no property of hypothesis, of which there are examples to be replayed: "
                "run it by pytest, or under a schedule by `simgpu replay TEST TOKEN`"
            )
        return status


def is_example(code: str) -> bool:
    """Whether hypothesis can read the code of an example."""
    from hypothesis.core import decode_failure
    from hypothesis.errors import InvalidArgument

    try:
        decode_failure(code.encode())
    except InvalidArgument:
        return False
    return True
