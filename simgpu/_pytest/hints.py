"""Add a hint to the report of a test that failed because it used a device that is not there.

The error comes from torch or from simgpu, and neither knows that pytest runs it. So the report gets
a section below the error, which names the fixture, the marker or the option that the test needs.
"""

from __future__ import annotations

import pytest

from simgpu._pytest.marker import FIXTURES
from simgpu._pytest.options import read_options
from simgpu._testing.error_text import text_of

# What torch says of "cuda" where there is none: a build for the CPU, and one with CUDA.
_NO_CUDA = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver")
# What is said of "simgpu:0" where there are no devices: by torch before a process has made its
# first ones, which name the type, and by simgpu later.
_NO_NAME = "device type at start of device string: simgpu"
_NO_DEVICES = "was used, but there are no simulated devices: "
# What simgpu says of an index past the last device.
_NO_INDEX = "invalid device ordinal: "


def add_hint(item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
    """Add a section to the report of a test, if it used a device that is not there."""
    options = read_options(item.config)
    if options.kind == "cuda" or options.oversubscribe:
        return
    simulated = bool(FIXTURES & set(getattr(item, "fixturenames", ())))
    hint = hint_for(text_of(error), simulated, options.as_cuda)
    if hint:
        report.sections.append(("simgpu", hint))


def hint_for(told: str, simulated: bool, as_cuda: bool) -> str | None:
    """What to do about an error with the text `told`, if it is of a device that is not there."""
    if _NO_INDEX in told and (simulated or as_cuda):
        return (
            "--device-count says how many devices there are, and @pytest.mark.devices(n) how many "
            "of them a test has."
        )
    if as_cuda:
        return None
    if simulated:
        if any(text in told for text in _NO_CUDA):
            return (
                "This test has simulated devices by their own name: say devices[0] where it says "
                '"cuda", or run it with --as-cuda, which gives them the name of CUDA.'
            )
    elif told.endswith(_NO_NAME) or _NO_DEVICES in told:
        return (
            "This test has no simulated devices: let it take the fixture `devices`, or enter "
            "`with simgpu.devices(n)`. What is built once for several tests, as in setUpClass, can "
            "have those of --as-cuda."
        )
    return None
