"""`pytest --as-cuda`: an existing CUDA suite runs on simulated devices, unchanged.

The devices are there before the suite's first conftest is imported, since suites ask torch.cuda at
import already (`skipif(not torch.cuda.is_available())`), and stay for the whole session. Part of
the plugin (`pytest_plugin`), which loads this file; torch is imported only where the option is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


_WORLD = contextlib.ExitStack()


class AsCudaPool:
    """The simulated devices of a session, by the name of CUDA; each test has the first of them."""

    distinct = True

    def __init__(self, count: int) -> None:
        self.count = count

    def describe(self) -> str:
        noun = "simulated GPU" if self.count == 1 else "simulated GPUs"
        return f"{self.count} {noun} (simgpu, as cuda)"

    @contextlib.contextmanager
    def lend(self, count: int) -> Iterator[list[torch.device]]:
        import torch

        devices = [torch.device("cuda", index) for index in range(count)]
        torch.cuda.set_device(0)
        torch.manual_seed(0)
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        yield devices


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("simgpu").addoption(
        "--as-cuda",
        action="store_true",
        help="let simulated devices go by the name of CUDA, for suites written for CUDA",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    options = early_config.known_args_namespace
    if not options.as_cuda:
        return
    from simgpu._pytest import pools

    if options.devices == "cuda" or options.oversubscribe:
        raise pytest.UsageError(
            "--as-cuda gives simulated devices the name of CUDA: it cannot be combined with "
            f"{'--oversubscribe' if options.oversubscribe else '--devices cuda'}"
        )
    count = options.device_count or pools.DEFAULT_COUNT
    if not 1 <= count <= pools.MAX_COUNT:
        return  # refused by the plugin, in its own words
    from simgpu import as_cuda
    from simgpu.errors import RealCudaError

    try:
        _WORLD.enter_context(as_cuda(count))
    except RealCudaError as error:
        raise pytest.UsageError(f"--as-cuda: {error}") from None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--as-cuda"):
        from simgpu import pytest_plugin
        from simgpu._pytest import pools

        count = config.getoption("--device-count") or pools.DEFAULT_COUNT
        config.stash[pytest_plugin._POOL] = AsCudaPool(count)


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.getoption("--as-cuda"):
        _WORLD.close()
