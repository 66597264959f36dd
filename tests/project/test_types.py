"""What a type checker says about a program that uses simulated devices."""

import pytest

PROGRAM = """
import simgpu
import torch

with simgpu.devices(2, memory="1GiB") as devices:
    x: torch.Tensor = torch.ones(3).to(devices[1])
    used: int = simgpu.device_module.memory_allocated(devices[1])
    simgpu.device_module.synchronize(1)
simgpu.enable(2, as_cuda=True)
simgpu.disable()
wrong: str = simgpu.device_module.device_count()
"""


@pytest.mark.full
def test_mypy_knows_the_public_names(python, tmp_path):
    pytest.importorskip("mypy", reason="needs the extra `lint`")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = python("-m", "mypy", "--strict", tmp_path / "program.py", PYTHONWARNINGS="ignore")
    [line, found] = done.stdout.splitlines()
    assert "program.py:11: error: Incompatible types in assignment" in line
    assert found.startswith("Found 1 error")
