"""`pytest --async`: kernels and copies of simulated devices run when something waits for them.

The whole session runs so (`simgpu.asynchronous`), whichever way a test makes its devices. Each test
begins the orders of the seed anew, so that it can be run by itself. One with
`@pytest.mark.without("--async")` runs at once.

PYTEST_DONT_REWRITE: simgpu.pytest_plugin imports it before pytest does, which would warn of that.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from simgpu._pytest.markers import options_for
from simgpu._pytest.options import read_options

_EXECUTOR: pytest.StashKey[Any] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    options = read_options(config)
    if not options.asynchronous:
        return
    import torch  # noqa: F401  # first: it may make devices, which import what is asked for here

    from simgpu._explore.asynchronous import executor as asynchronous_executor

    config.stash[_EXECUTOR] = asynchronous_executor.begin(options.async_seed)
    config.add_cleanup(lambda: asynchronous_executor.end(config.stash[_EXECUTOR]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    stash = item.config.stash
    executor = stash.get(_EXECUTOR, None)
    if executor is None:
        return (yield)
    if options_for(item).asynchronous:
        executor.restart(executor.seed)
        return (yield)
    from simgpu._explore.asynchronous import executor as asynchronous_executor

    asynchronous_executor.end(executor)
    try:
        return (yield)
    finally:
        stash[_EXECUTOR] = asynchronous_executor.begin(executor.seed)
