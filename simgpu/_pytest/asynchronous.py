"""`pytest --async`: kernels and copies of simulated devices run when something waits for them.

The whole session runs so (`simgpu.asynchronous`), whichever way a test makes its devices. Each test
begins the orders of the seed anew, so that it can be run alone.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from simgpu._pytest.options import read_options

_EXECUTOR: pytest.StashKey[Any] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    options = read_options(config)
    if not options.asynchronous:
        return
    import torch  # noqa: F401  # first: it may make devices, which import what is asked for here

    from simgpu._simulation.asynchronous import block

    executor = block.begin(options.async_seed)
    config.stash[_EXECUTOR] = executor
    config.add_cleanup(lambda: block.end(executor))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    executor = item.config.stash.get(_EXECUTOR, None)
    if executor is not None:
        executor.restart(executor.seed)
    return (yield)
