"""What mypy says about a user's tests in a folder of their own, by the wheel's types."""

import subprocess
import sys

import pytest

TESTS = """
import dataparallel, pytest, simgpu, torch
from hypothesis import given
from hypothesis import strategies as st
from simgpu import strategies
from simgpu.errors import OutOfMemoryError
from simgpu.pytest_plugin import Run

def test_parallel(devices: list[torch.device]) -> None:
    model = dataparallel.DataParallel(torch.nn.Linear(3, 2).to(devices[0]), device_ids=devices)
    layer: torch.nn.Linear = model.module
    used: int = simgpu.device_module.memory_allocated(devices[1])
    with pytest.raises(OutOfMemoryError), simgpu.faults(oom_at=0) as injected:
        layer(torch.ones(used, 3, device=devices[0]))
    copies: int = injected.copies

@pytest.mark.ranks(2)
def test_ranks(ranks: Run) -> None:
    sizes: list[int] = ranks(lambda rank: rank + 1, schedule=3)

@given(st.data())
def test_batches(data: st.DataObject) -> None:
    names: list[str] = data.draw(strategies.device_lists(["a", "b"]))
    rows: int = data.draw(strategies.batches(len(names)))
    x: torch.Tensor = data.draw(strategies.tensors((rows, 3)))
"""
WRONG = """
import dataparallel, simgpu, torch
from simgpu import strategies
from simgpu.pytest_plugin import Run

def test_ranks(ranks: Run, devices: list[torch.device]) -> None:
    a: list[str] = ranks(lambda rank: rank + 1)
    b: str = simgpu.device_module.device_count()
    c: str = dataparallel.DataParallel(torch.nn.Linear(3, 2)).module
    d: str = strategies.batches(3).example()
    ranks(lambda: 1)
    simgpu.devices("two")
"""


@pytest.fixture(scope="module")
def errors(installed, tmp_path_factory):
    """What mypy prints about each of the two files."""
    pytest.importorskip("mypy", reason="needs the extra `lint`")
    folder = tmp_path_factory.mktemp("user")
    texts = {"test_right.py": TESTS, "test_wrong.py": WRONG}
    for name, text in texts.items():
        (folder / name).write_text(text)
    command = ["-m", "mypy", "--strict", "--python-executable", str(installed), *texts]
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1].endswith("(checked 2 source files)"), done.stderr
    return {
        name: [line for line in done.stdout.splitlines() if line.startswith(name)] for name in texts
    }


def test_a_users_tests_are_typed(errors):
    assert errors["test_right.py"] == []


def test_mistakes_in_a_users_tests_are_found(errors):
    """None of the names in it has the type `Any`, to which all may be assigned."""
    found = {int(line.split(":")[1]) for line in errors["test_wrong.py"]}
    assert found == set(range(7, 13)), errors
