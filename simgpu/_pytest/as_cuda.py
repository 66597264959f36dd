"""`pytest --as-cuda`: an existing CUDA suite runs on simulated devices, unchanged.

The devices are there before the suite's first conftest is imported, since suites ask torch.cuda at
import already (`skipif(not torch.cuda.is_available())`), and stay for the whole session. Processes
that the suite starts have them too, as under `simgpu run`. Torch is imported only where the option
is set.

PYTEST_DONT_REWRITE: simgpu.pytest_plugin imports it before pytest does, which would warn of that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import pytest

from simgpu._config import options as config_options
from simgpu._pytest.options import SessionOptions, check, options_in, process_count
from simgpu._pytest.pools import explain_devices
from simgpu._util import naming


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Before a conftest imports torch, which ends the process where the variable is wrong.
    process_count()
    options = options_in(early_config.known_args_namespace)
    if options.as_cuda:
        _start(early_config, options)


def _start(config: pytest.Config, options: SessionOptions) -> None:
    if options.kind == "cuda" or options.oversubscribe:
        raise pytest.UsageError(
            "--as-cuda gives simulated devices the name of CUDA: it cannot be combined with "
            f"{'--oversubscribe' if options.oversubscribe else '--devices cuda'}"
        )
    check(options)
    count, texts = options.count_or_default, options.texts
    variables = config_options.clear_variables()  # a worker of pytest-xdist has its parent's
    ends = contextlib.ExitStack()
    config.add_cleanup(ends.close)  # also where a conftest fails, so that the session never begins
    ends.callback(os.environ.update, variables)
    ends.callback(config_options.clear_variables)
    _make_devices(ends, count, texts)
    config_options.set_variables(count, texts, "1")


def _make_devices(ends: contextlib.ExitStack, count: int, texts: Mapping[str, str]) -> None:
    from simgpu import as_cuda
    from simgpu._core import world
    from simgpu.errors import SimGPUError

    if world.device_count() == count and "cuda" in naming.names:
        return  # a plugin imported torch before, under the variables of a parent
    try:
        ends.enter_context(as_cuda(count, **config_options.arguments(texts)))
    except SimGPUError as error:
        raise pytest.UsageError(f"--as-cuda: {error}") from None
    explain_devices(
        "pytest --as-cuda made them for the whole session: take the fixture `devices`, with "
        "@pytest.mark.devices(n) for how many"
    )
