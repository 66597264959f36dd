"""What is mutated under each name, and the tests that may notice it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    name: str
    folders: tuple[str, ...]
    """What is mutated."""
    tests: tuple[str, ...]
    """Folders and files of tests."""
    tier: str = "default"

    def judged_by(self, tier: str) -> Package:
        """This package with the tests of a tier: "default" or "full"."""
        more = ("tests/full/processes", "tests/full/programs") if tier == "full" else ()
        return dataclasses.replace(self, tier=tier, tests=(*self.tests, *more))


_CORE = ("_core", "_memory", "_distributed", "_ranks", "_explore", "_clock")
_ON_DEVICES = ("tests/devices", "tests/simulator", "tests/cuda", "tests/dataparallel")

PACKAGES = {
    package.name: package
    for package in (
        Package(
            "dataparallel",
            ("dataparallel",),
            (
                "tests/dataparallel",
                "tests/devices/computing/test_autocast_regions.py",
                "tests/simulator/asynchronous/test_data_parallel.py",
                "tests/simulator/asynchronous/test_results_on_the_host.py",
                "tests/simulator/launches",
                "tests/simulator/schedules/test_data_parallel.py",
                "tests/simulator/streams",
            ),
        ),
        Package(
            "core",
            tuple(f"simgpu/{name}" for name in _CORE),
            (*_ON_DEVICES, "tests/distributed", "tests/hardware", "tests/tools"),
        ),
        Package("kernels", ("simgpu/_ops", "simgpu/_backend", "simgpu/_cuda"), _ON_DEVICES),
    )
}


def package_of(paths: Sequence[str]) -> Package:
    """The package that has these files; for others, core and their folders, judged by its tests."""
    for package in PACKAGES.values():
        if all(path.startswith(package.folders) for path in paths):
            return package
    folders = {path.rpartition("/")[0] if path.endswith(".py") else path for path in paths}
    core = PACKAGES["core"]
    return dataclasses.replace(core, folders=(*core.folders, *sorted(folders)))
