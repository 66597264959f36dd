"""Triton where devices go by the name of CUDA: it finds no driver, and says so."""

import importlib
import sys

import pytest
import torch

import simgpu
from simgpu.errors import UnsupportedError

DRIVER = '''
def _create_driver():
    """As Triton does: it takes torch.cuda for a sign that CUDA's libraries are there."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("0 active drivers ([]). There should only be one.")
    raise AssertionError("libcuda.so cannot found!")
'''


@pytest.fixture
def triton(tmp_path, monkeypatch):
    """A package with what is replaced in Triton, in its place."""
    package = tmp_path / "triton" / "runtime"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "driver.py").write_text(DRIVER)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    yield lambda: importlib.import_module("triton.runtime.driver")
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]


@pytest.mark.parametrize("imported", ["before", "within"])
def test_a_driver_is_refused_within_the_block(triton, imported):
    driver = triton() if imported == "before" else None
    with simgpu.as_cuda(1):
        driver = driver or triton()
        with pytest.raises(UnsupportedError, match="TRITON_INTERPRET=1") as caught:
            driver._create_driver()
        # What PyTorch catches where it asks for the key of its cache.
        assert isinstance(caught.value, RuntimeError)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        driver._create_driver()


def test_the_allocator_of_devices_is_the_one_that_graphs_of_cuda_need(cuda):
    """torch.compile(mode="max-autotune") asks even for a graph of the CPU."""
    assert torch._C._cuda_cudaCachingAllocator_is_enabled()
