"""The header of a pytest session, and hints for tests that failed because a device is missing."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from simgpu._pytest import pools
from simgpu._pytest.markers import FIXTURES, WANTED_PROPERTY, properties
from simgpu._pytest.options import SessionOptions, read_options
from simgpu._strategies.examples import text_of
from simgpu._util import naming

# Where an NVIDIA or AMD driver is visible, so that the header needs no import of torch.
DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", r"C:\Windows\System32\nvcuda.dll")
# Read by torch.cuda.is_available.
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def header_line(config: pytest.Config) -> str:
    """The header line: devices of the tests and active checks, without importing torch."""
    parts = [_devices(config), *active_options(read_options(config))]
    return f"devices: {'; '.join(parts)}"


def active_options(options: SessionOptions) -> list[str]:
    """The options that look for more in a test, or run it more than once, as they were given."""
    looks = {
        "--races": options.races,
        f"--faults {options.faults}": options.faults,
        f"--schedules {options.schedules}": options.schedules,
        f"--schedule {options.schedule}": options.schedule,
    }
    active = [name for name, given in looks.items() if given]
    return [f"each test with {', '.join(active)}"] if active else []


def _devices(config: pytest.Config) -> str:
    options = read_options(config)
    if not pools.is_chosen(config):
        simulated = pools.simulated_pool(options).describe()
        if not any(map(os.path.exists, DRIVER_FILES)):
            return simulated
        if "torch" not in sys.modules:
            return f"real GPUs if torch finds two or more, else {simulated}"
    with _cuda_is_not_started():
        pool = pools.session_pool(config) if pools.is_chosen(config) else pools.choose_pool(options)
        return f"{pool.describe()}{_sharing(config, pool)}"


@contextlib.contextmanager
def _cuda_is_not_started() -> Iterator[None]:
    """Make torch ask only the driver's library whether there are GPUs.

    To start CUDA here would keep the tests from using it in processes that they fork, in suites
    too that know nothing of simgpu.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NVML_CHECK, "1")
        yield


def _sharing(config: pytest.Config, pool: pools.Pool) -> str:
    """The notice about the workers that this process is going to start."""
    workers = getattr(config.option, "numprocesses", None)
    if not isinstance(pool, pools.CudaPool) or not isinstance(workers, int) or workers < 2:
        return ""
    if not pool.distinct:
        return f"; {workers} workers share it, and each has 1/{workers} of its memory"
    gpus = pools.gpu_count()
    return f"; {pools.describe(workers, gpus, pools.group_size(read_options(config), gpus))}"


# Hints for tests that failed because a device is not there: the error comes from torch or from
# simgpu, and neither knows that pytest runs it.

# Errors of torch about "cuda" where there is none: a build for the CPU, before and after `as_cuda`,
# and one with CUDA.
_NO_CUDA = (
    "Torch not compiled with CUDA enabled",
    "PyTorch is not linked with support for cuda devices",
    "Found no NVIDIA driver",
    "module 'torch._C' has no attribute '_cuda_",
)
# Errors about "simgpu:0" where there are no devices: by torch before a process has made its
# first ones, which name the type, and by simgpu later.
_NO_NAME = "device type at start of device string: simgpu"
_NO_DEVICES = "was used, but there are no simulated devices: "
# simgpu's error about an index past the last device.
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


# How many tests were skipped or failed since there is no CUDA, at the end of the session; under
# --as-cuda, how many were skipped that name a number of GPUs.
#
# A skip of `skipif(torch.cuda.device_count() < 2, reason=...)` looks like any other: its reason or
# its decorators name CUDA or GPUs.

_WANTS_CUDA = "simgpu wants cuda"
_NAMES_CUDA = re.compile(r"cuda|nccl|(?<!sim)gpus?(?![a-z])", re.IGNORECASE)
_COUNTS_GPUS = re.compile(r"device_count|gpus(?![a-z])|multi.?gpu", re.IGNORECASE)


def note_want_of_cuda(
    node: pytest.Item | pytest.Collector,
    error: BaseException,
    report: pytest.TestReport | pytest.CollectReport,
) -> None:
    """Note on the report of a test or a module that it was skipped or failed for want of CUDA."""
    options = read_options(node.config)
    if options.kind == "cuda" or hasattr(report, "wasxfail"):
        return
    text = text_of(error)
    wants = not options.as_cuda and any(words in text for words in _NO_CUDA)
    if report.skipped:
        ours = bool(properties([report], WANTED_PROPERTY))
        words = _COUNTS_GPUS if options.as_cuda else _NAMES_CUDA
        wants = not ours and words.search(f"{text} {_decorators(node)}") is not None
        wants = wants and "real" not in text.split()  # for which simulated ones do not do
    if wants and (options.as_cuda or not _has_cuda()):
        noted = [*getattr(report, "user_properties", ()), (_WANTS_CUDA, report.outcome)]
        vars(report)["user_properties"] = noted  # that of a module has none


def _decorators(node: pytest.Item | pytest.Collector) -> str:
    try:
        return inspect.getsource(getattr(node, "function", None)).partition("def ")[0]  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""


def _has_cuda() -> bool:
    if "cuda" in naming.names:
        return True
    if not any(map(os.path.exists, DRIVER_FILES)):
        return False
    with _cuda_is_not_started():
        return "torch" not in sys.modules or bool(sys.modules["torch"].cuda.is_available())


def cuda_lines(reports: Iterable[Any], options: SessionOptions) -> list[str]:
    """The line about tests that were skipped or failed for want of CUDA; none if no test was."""
    outcomes = properties(reports, _WANTS_CUDA)
    if not outcomes:
        return []
    if options.as_cuda:
        has = naming.plural(options.count_or_default, "GPU")
        return [
            f"{len(outcomes)} skipped by a condition that names a number of GPUs: this session has "
            f"{has}, and --device-count gives it another number"
        ]
    counts = [f"{n} {what}" for what in ("skipped", "failed") if (n := outcomes.count(what))]
    return [
        f"{' and '.join(counts)} for want of CUDA: pytest --as-cuda runs the session on simulated "
        "GPUs"
    ]


def hint_for(error: str, simulated: bool, as_cuda: bool) -> str | None:
    """The way out of an error about a device that does not exist, or None."""
    if _NO_INDEX in error and (simulated or as_cuda):
        return (
            "--device-count says how many devices there are, and @pytest.mark.devices(n) how many "
            "of them a test has."
        )
    if as_cuda:
        return None
    if simulated:
        if any(text in error for text in _NO_CUDA):
            return (
                "This test has simulated devices by their own name: say devices[0] where it says "
                '"cuda", or run it with --as-cuda, which gives them the name of CUDA.'
            )
    elif error.endswith(_NO_NAME) or _NO_DEVICES in error:
        return (
            "This test has no simulated devices: take the fixture `devices`, or enter "
            "`with simgpu.devices(n)`. What is built once for several tests, as in setUpClass, can "
            "have those of --as-cuda."
        )
    return None
