"""What a campaign tells the pytest sessions that it starts, through one environment variable."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass

VARIABLE = "SIMGPU_FUZZ_SETTINGS"
# They would give a session of pytest devices for its whole life (`simgpu._startup.variables`).
PROCESS_DEVICES = (
    "SIMGPU_DEVICE_COUNT",
    "SIMGPU_DEVICE_MEMORY",
    "SIMGPU_MODEL",
    "SIMGPU_RNG",
    "SIMGPU_AS_CUDA",
)
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
    kept_alone: bool = False
    """Whether nothing but what the database keeps is run."""

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
    return {name: value for name, value in os.environ.items() if name not in PROCESS_DEVICES}


def absolute_database(database: str) -> str:
    """Return the same database for processes that may work in another folder."""
    return database if "://" in database else os.path.abspath(database)
