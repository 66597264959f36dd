"""A conftest that adds an option of our name: one line that says so, in place of a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Generator

import pytest

from simgpu._pytest.options import names


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None, object, object]:
    try:
        return (yield)
    except argparse.ArgumentError as error:
        taken = names.intersection((error.argument_name or "").split("/"))
        if not taken:
            raise
        raise pytest.UsageError(
            f"a conftest.py adds the option {', '.join(sorted(taken))}, which is simgpu's: rename "
            "it there, or leave simgpu's plugin out (-p no:simgpu, also as addopts)"
        ) from None
