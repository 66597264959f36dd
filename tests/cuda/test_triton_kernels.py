"""Triton where devices go by the name of CUDA: it finds no driver, and says so."""

import importlib
import subprocess
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


PROGRAM = """
import simgpu, torch, triton
import triton.language as tl

@triton.jit
def double(source, target, count, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    value = tl.load(source + index, mask=index < count)
    tl.store(target + index, value * 2, mask=index < count)

def doubled(x):
    y = torch.empty_like(x)
    double[(1,)](x, y, x.numel(), SIZE=8)
    return y

with simgpu.as_cuda(2):
    on_cpu = torch.compile(lambda x: (x.sin() + 1).cos())
    x = torch.ones(4)
    torch.testing.assert_close(on_cpu(x), (x.sin() + 1).cos())
    for call in (doubled, torch.compile(doubled)):
        try:
            call(torch.ones(3, device="cuda:1"))
        except NotImplementedError as error:
            print(type(error).__name__, "TRITON_INTERPRET=1" in str(error))
"""
INTERPRETED = (
    PROGRAM.partition("    on_cpu")[0]
    + """
    print(doubled(torch.ones(3, device="cuda:1")))
"""
)


@pytest.mark.full
def test_a_graph_of_the_cpu_is_compiled_where_triton_is_installed(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "program.py").write_text(PROGRAM)  # Triton reads the source of a kernel
    (tmp_path / "interpreted.py").write_text(INTERPRETED)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["UnsupportedError True"] * 2, done.stderr
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = subprocess.run(
        [sys.executable, tmp_path / "interpreted.py"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "tensor([2., 2., 2.], device='cuda:1')\n", done.stderr


def test_the_allocator_of_devices_is_the_one_that_graphs_of_cuda_need(cuda):
    """torch.compile(mode="max-autotune") asks even for a graph of the CPU."""
    assert torch._C._cuda_cudaCachingAllocator_is_enabled()
