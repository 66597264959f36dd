"""Every tensor that simgpu makes for itself names its device.

The default tensor type is one variable of the process, and the default device one of a thread:
where a program has made them a device, a factory that names none would make a tensor there.
"""

import ast
from pathlib import Path

from torch.utils._device import _device_constructors

ROOT = Path(__file__).parents[2]
FACTORIES = {function.__name__ for function in _device_constructors()} | {"Tensor"}
# These take the device of the tensors that they are made from.
FACTORIES = {name for name in FACTORIES if not name.startswith("sparse")}


def factories_without_device(text):
    """The lines of a file in which a factory of torch is called and no device is named."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "torch"
            and node.func.attr in FACTORIES
            and not {"device", None} & {keyword.arg for keyword in node.keywords}
        ):
            yield f"{node.lineno}: torch.{node.func.attr}"


def test_every_factory_of_simgpu_names_its_device():
    for call in ("torch.zeros(2)", "torch.tensor([1])", "torch.Tensor(2)"):
        assert list(factories_without_device(call))
        assert not list(factories_without_device(f"{call[:-1]}, device='cpu')"))
    files = sorted((ROOT / "simgpu").rglob("*.py"))
    assert len(files) > 100
    found = {str(path): list(factories_without_device(path.read_text())) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}
