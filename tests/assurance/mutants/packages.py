"""What is mutated under each name, and the tests that may notice it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    name: str
    folders: tuple[str, ...]
    """What is mutated."""
    tests: tuple[str, ...]


PACKAGES = {
    "dataparallel": Package(
        "dataparallel",
        ("dataparallel",),
        (
            "tests/dataparallel",
            "tests/devices/computing/test_autocast_regions.py",
            "tests/simulator/schedules/test_data_parallel.py",
            "tests/simulator/launches/test_stream_records.py",
            "tests/simulator/launches/test_trace.py",
            "tests/simulator/streams/test_who_waits.py",
        ),
    ),
    "simgpu": Package(
        "simgpu",
        ("simgpu/_runtime", "simgpu/_memory", "simgpu/_kernels", "simgpu/_backend"),
        (
            "tests/devices",
            "tests/simulator",
            "tests/cuda",
            "tests/dataparallel",
            "tests/hardware/test_published.py",
        ),
    ),
    "distributed": Package(
        "distributed",
        ("simgpu/_distributed", "simgpu/_ranks"),
        ("tests/distributed",),
    ),
}
