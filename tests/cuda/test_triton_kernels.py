"""Triton on simulated CUDA devices, by a package with what simgpu replaces of it.

`tests/assurance/clients` has Triton's own interpreter.
"""

import builtins
import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import simgpu
from simgpu.errors import DeviceMismatchError, UnsupportedError

PACKAGE = {
    "__init__": "",
    "backends/__init__": "",
    "backends/compiler": "def GPUTarget(*facts):\n    return facts",
    "backends/driver": "class GPUDriver:\n    pass",
    "runtime/__init__": "from .driver import driver",
    "runtime/driver": """
from ..backends.driver import GPUDriver

def _create_driver():
    raise AssertionError("libcuda.so cannot found!")

class DriverConfig:
    def __init__(self):
        self.active = None
    def set_active(self, driver):
        self.active = driver

driver = DriverConfig()
""",
    "runtime/jit": """
class JITFunction:
    def __init__(self, fn):
        self.fn = fn
    def run(self, *args):
        raise AssertionError("no compiler")
""",
    "runtime/interpreter": """
import ast

class FunctionRewriter:
    def _transform_ast(self, source):
        return ast.parse(source)

def store(pointer, value):
    pointer.copy_(value)

class GridExecutor:
    def __init__(self, fn):
        self.fn, self.arg_names = fn, fn.__code__.co_varnames
    def __call__(self, *args, **kwargs):
        self.fn(*args, **kwargs)
        self._restore_args_dev()

def add(x, y, *, out):
    total = x + y
    to = out
    store(to, total)

def add_to(x, y):
    add(x, y, out=x)
""",
}


@pytest.fixture
def triton(tmp_path, monkeypatch):
    """Import a module of the package, in Triton's place."""
    for name, text in PACKAGE.items():
        file = tmp_path / "triton" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    yield lambda name: importlib.import_module(f"triton.runtime.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]


@pytest.fixture
def add(triton, cuda):
    """A kernel that Triton's interpreter runs."""
    interpreter = triton("interpreter")
    return interpreter.GridExecutor(interpreter.add)


@pytest.mark.parametrize("imported", ["before", "within"])
def test_driver_is_active_within_the_block(triton, imported):
    driver = triton("driver") if imported == "before" else None
    with simgpu.as_cuda(2, model=["A100", "H100"], force=True):
        driver = driver or triton("driver")
        active, device = driver.driver.active, torch.device("cuda", 1)
        assert active.get_current_target() == ("cuda", 80, 32)
        with torch.cuda.device(device):
            assert active.get_active_torch_device() == device
            assert active.get_current_target() == ("cuda", 90, 32)
            with torch.cuda.stream(torch.cuda.Stream()):
                assert active.get_current_stream(1) == torch.cuda.current_stream().cuda_stream
                assert active.get_current_stream(0) == 0
        assert active.utils.get_device_properties(1)["multiprocessor_count"] == 132
        assert type(driver._create_driver()).__name__ == type(active).__name__
    assert driver.driver.active is None
    with pytest.raises(AssertionError, match="libcuda"):
        driver._create_driver()


def test_compiled_kernel_names_the_variable_of_the_interpreter(triton, cuda):
    kernel = triton("jit").JITFunction(len)
    with pytest.raises(UnsupportedError, match=r"the kernel len .*TRITON_INTERPRET=1"):
        kernel.run()
    kernel.is_gluon = lambda: True
    with pytest.raises(UnsupportedError, match="the kernel len in Gluon"):
        kernel.run()


def test_kernel_is_a_launch_on_the_device_of_its_arguments(add):
    for index in range(2):
        x, y, out = (torch.full((3,), value, device=f"cuda:{index}") for value in (1, 2, 0))
        with simgpu.trace() as trace, torch.cuda.device(index):
            add(x, y, out=out)
        assert [(record.op, record.device) for record in trace] == [("triton.add", x.device)]
        assert out.tolist() == [3] * 3


@pytest.mark.parametrize(
    ("device", "error"), [("cuda:1", DeviceMismatchError), ("cpu", ValueError)]
)
def test_argument_elsewhere_raises(add, device, error):
    x, out = torch.ones(3, device="cuda:0"), torch.zeros(3, device="cuda:0")
    with pytest.raises(error, match=f"y .*{'cuda:1' if device != 'cpu' else 'cpu tensor'}"):
        add(x, torch.ones(3, device=device), out=out)
    assert out.tolist() == [0] * 3
    add(x, torch.ones(3, pin_memory=True), out=out)
    assert out.tolist() == [2] * 3


@pytest.mark.without("--races", reason="races on purpose")
def test_kernels_race_over_what_they_write(add):
    x, outs, side = (
        torch.ones(3, device="cuda"),
        torch.zeros(3, 3, device="cuda"),
        torch.cuda.Stream(),
    )
    torch.cuda.synchronize()
    with simgpu.races() as races:
        add(x, x, out=outs[0])
        with torch.cuda.stream(side):
            add(x, x, out=outs[1])  # both only read x
            assert not races
            add(outs[0], x, out=outs[2])
        torch.cuda.synchronize()
    assert [(race.first.op, race.second.op) for race in races] == [("triton.add", "triton.add")]


def test_kernel_writes_what_its_functions_write(triton):
    from simgpu._cuda.triton_driver import written_parameters

    interpreter = triton("interpreter")
    assert written_parameters(interpreter.add) == {"out"}
    assert written_parameters(interpreter.add_to) == {"x", "y"}  # unknown: no kernel of Triton
    interpreter.add.fn = interpreter.add
    written_parameters.cache_clear()
    assert written_parameters(interpreter.add_to) == {"x"}
    assert written_parameters(eval("lambda x: x")) is None


def test_variable_of_a_loop_over_a_range_is_a_value_of_the_interpreter(triton, cuda):
    source = "for i in language.range(2):\n    seen += [i]\nfor i in [3]:\n    seen += [i]\n"
    tree = triton("interpreter").FunctionRewriter()._transform_ast(source)
    values = SimpleNamespace(to_tensor=lambda value, _: torch.tensor(value))
    names = {"language": builtins, "interpreter_semantic": values, "seen": []}
    exec(compile(tree, "kernel", "exec"), names)
    assert [type(each) for each in names["seen"]] == [torch.Tensor, torch.Tensor, int]
