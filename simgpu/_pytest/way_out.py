"""What a test that fails for a device's name is told: errors of torch know nothing of simgpu."""

from __future__ import annotations

import pytest

from simgpu._pytest.marker import FIXTURES
from simgpu._pytest.options import read_options
from simgpu._testing.error_text import text_of

# What torch says of "cuda" where there is none: a build for the CPU, and one with CUDA.
_NO_CUDA = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver")
# What torch says of "simgpu:0" before a process has made its first devices, which name the type.
_NO_NAME = "device type at start of device string: simgpu"


def add_way_out(item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
    """Add a section to the report of a test, if it used a name that its devices do not go by."""
    options = read_options(item.config)
    if options.kind == "cuda" or options.oversubscribe or options.as_cuda:
        return
    simulated = FIXTURES & set(getattr(item, "fixturenames", ()))
    told = text_of(error)
    if simulated and any(text in told for text in _NO_CUDA):
        report.sections.append(
            (
                "simgpu",
                "This test has simulated devices by their own name: say devices[0] where it says "
                '"cuda", or run it with --as-cuda, which gives them the name of CUDA.',
            )
        )
    elif not simulated and told.endswith(_NO_NAME):
        report.sections.append(
            (
                "simgpu",
                "This test has no simulated devices: let it take the fixture `devices`, or enter "
                "`with simgpu.devices(n)`.",
            )
        )
