"""`pytest --as-cuda`: an existing CUDA suite runs on simulated devices, unchanged.

The devices are there before the suite's first conftest is imported, since suites ask torch.cuda at
import already (`skipif(not torch.cuda.is_available())`), and stay for the whole session. Processes
that the suite starts have them too, as under `simgpu run`. Torch is imported only where the option
is set.

PYTEST_DONT_REWRITE: simgpu.pytest_plugin imports it before pytest does, which would warn of that.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import pytest

from simgpu._config import options as config_options
from simgpu._pytest.options import SessionOptions, check, options_in, process_count
from simgpu._pytest.short_option import SHORT
from simgpu._util import naming


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    # Before a conftest imports torch, which ends the process where the variable is wrong.
    process_count()
    options = options_in(early_config.known_args_namespace)
    if options.as_cuda:
        for short in SHORT:
            if getattr(options, short.field) is None:
                early: Any = {short.field: short.early(early_config, args)}
                options = dataclasses.replace(options, **early)
        _start(early_config, options)


def _start(config: pytest.Config, options: SessionOptions) -> None:
    if options.kind == "cuda" or options.oversubscribe:
        raise pytest.UsageError(
            "--as-cuda gives simulated devices the name of CUDA: it cannot be combined with "
            f"{'--oversubscribe' if options.oversubscribe else '--devices cuda'}"
        )
    check(options)
    texts = options.texts  # a worker of pytest-xdist finds them in what its parent gave it
    variables = config_options.clear_variables()

    def restore() -> None:
        config_options.clear_variables()
        os.environ.update(variables)

    config.add_cleanup(restore)
    _make_devices(config, options.count_or_default, texts)
    config_options.set_variables(options.count_or_default, texts, "1")


def _make_devices(config: pytest.Config, count: int, texts: Mapping[str, str]) -> None:
    from simgpu import as_cuda
    from simgpu._core import world
    from simgpu.errors import SimGPUError

    if world.device_count() == count and "cuda" in naming.names:
        return  # a plugin imported torch before, under the variables of a parent
    devices = as_cuda(count, **config_options.arguments(texts))
    try:
        devices.__enter__()
    except SimGPUError as error:
        raise pytest.UsageError(f"--as-cuda: {error}") from None

    def leave() -> None:
        devices.__exit__(None, None, None)

    config.add_cleanup(leave)  # also where a conftest fails, so that the session never begins
    made = world.current_world()
    assert made is not None
    made.hint = (
        "pytest --as-cuda made them for the whole session: take the fixture `devices`, with "
        "@pytest.mark.devices(n) for how many"
    )
