"""Sessions inside this session: in this process wherever a process is not the subject itself."""

import importlib
import pkgutil

import pytest

import simgpu


@pytest.fixture(scope="session")
def everything_imported():
    """A session in this process forgets what it imported first, and must not import it twice."""
    for module in pkgutil.walk_packages(simgpu.__path__, "simgpu."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("torch._dynamo")  # by PyTorch itself, where a function needs it
    with simgpu.as_cuda(1):
        pass


@pytest.fixture
def pytester(everything_imported, pytester):
    return pytester
