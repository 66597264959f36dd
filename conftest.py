"""Keeps this suite out of sessions of other projects, which may have a clone of it in a folder.

The settings of the suite are those of `tests/conftest.py`.
"""

from pathlib import Path


def pytest_ignore_collect(config):
    """Ignore all of this folder where the session is that of a folder around it."""
    return config.rootpath in Path(__file__).parents[1:] or None
