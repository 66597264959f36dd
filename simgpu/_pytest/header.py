"""The line about devices and what is looked for in the header of a pytest session."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import pytest

from simgpu._pytest import pools
from simgpu._pytest.choose import choose_pool, group_size, is_chosen, session_pool, simulated_pool
from simgpu._pytest.gpu_groups import describe
from simgpu._pytest.options import DeviceOptions, read_options
from simgpu._pytest.pools import CudaPool, Pool

# Where an NVIDIA or AMD driver shows itself: lets the header answer without importing torch.
DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", r"C:\Windows\System32\nvcuda.dll")


# Read by torch.cuda.is_available.
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def header_line(config: pytest.Config) -> str:
    """Say which devices tests get and what is looked for, without importing torch for it."""
    told = [_devices(config), *looked_for(read_options(config))]
    return f"devices: {'; '.join(told)}"


def looked_for(options: DeviceOptions) -> list[str]:
    """The options that look for more in a test, or run it more than once, as they were given."""
    looks = {
        "--races": options.races,
        f"--faults {options.faults}": options.faults,
        f"--schedules {options.schedules}": options.schedules,
        f"--schedule {options.schedule}": options.schedule,
    }
    told = [name for name, given in looks.items() if given]
    return [f"each test with {', '.join(told)}"] if told else []


def _devices(config: pytest.Config) -> str:
    if is_chosen(config):
        pool = session_pool(config)
        return f"{pool.describe()}{_sharing(config, pool)}"
    simulated = simulated_pool(read_options(config))
    if any(map(os.path.exists, DRIVER_FILES)):
        if "torch" in sys.modules:
            with _cuda_is_not_started():
                pool = choose_pool(read_options(config))
                return f"{pool.describe()}{_sharing(config, pool)}"
        return f"real GPUs if torch finds two or more, else {simulated.describe()}"
    return simulated.describe()


@contextlib.contextmanager
def _cuda_is_not_started() -> Iterator[None]:
    """Let torch ask the driver's library alone whether there are GPUs.

    To start CUDA here would keep the tests from using it in processes that they fork, in suites
    too that know nothing of simgpu.
    """
    before = os.environ.get(NVML_CHECK)
    os.environ[NVML_CHECK] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NVML_CHECK]
        else:
            os.environ[NVML_CHECK] = before


def _sharing(config: pytest.Config, pool: Pool) -> str:
    """Return what is to be said of the workers that this process is going to start."""
    workers = getattr(config.option, "numprocesses", None)
    if not isinstance(pool, CudaPool) or not isinstance(workers, int) or workers < 2:
        return ""
    if not pool.distinct:
        return f"; {workers} workers share it, and each has 1/{workers} of its memory"
    gpus = pools.gpu_count()
    return f"; {describe(workers, gpus, group_size(read_options(config), gpus))}"
