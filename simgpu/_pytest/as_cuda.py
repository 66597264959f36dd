"""`pytest --as-cuda`: an existing CUDA suite runs on simulated devices, unchanged.

The devices are there before the suite's first conftest is imported, since suites ask torch.cuda at
import already (`skipif(not torch.cuda.is_available())`), and stay for the whole session. Part of
the plugin (`pytest_plugin`), which loads this file; torch is imported only where the option is set.
"""

from __future__ import annotations

import contextlib

import pytest

from simgpu._pytest.options import MAX_COUNT, options_in, read_options

# Holds the devices of the session from its first conftest to its end.
_session = contextlib.ExitStack()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    options = options_in(early_config.known_args_namespace)
    if not options.as_cuda:
        return
    if options.kind == "cuda" or options.oversubscribe:
        raise pytest.UsageError(
            "--as-cuda gives simulated devices the name of CUDA: it cannot be combined with "
            f"{'--oversubscribe' if options.oversubscribe else '--devices cuda'}"
        )
    if not 1 <= options.count_or_default <= MAX_COUNT:
        return  # refused by the plugin, in its own words
    from simgpu import as_cuda
    from simgpu.errors import RealCudaError

    try:
        _session.enter_context(as_cuda(options.count_or_default))
    except RealCudaError as error:
        raise pytest.UsageError(f"--as-cuda: {error}") from None


def pytest_unconfigure(config: pytest.Config) -> None:
    if read_options(config).as_cuda:
        _session.close()
