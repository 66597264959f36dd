"""The sdist and the wheel: contents, version, types, and use where there is nothing else."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import simgpu
from tests.full.package.conftest import run

PACKAGES = ("simgpu", "dataparallel")
DATA = (
    "simgpu/py.typed",
    "dataparallel/py.typed",
    "simgpu/_config/gpus.json",
    "simgpu/_cuda/extension.h",
    "simgpu/_fuzz/templates/report.css",
    "simgpu/_fuzz/templates/report.html.jinja",
)


def files_in(folder):
    """The paths of all files below `folder`."""
    return {
        str(Path(where, name).relative_to(folder))
        for where, _, names in os.walk(folder)
        for name in names
    }


@pytest.fixture(scope="module")
def sources(clone):
    """The files of both packages, which a distribution has to contain."""
    found = {name for name in files_in(clone) if name.split("/")[0] in PACKAGES}
    assert found.issuperset(DATA)
    return found


def test_wheel_has_only_the_packages(distributions, sources):
    names = set(zipfile.ZipFile(distributions[1]).namelist())
    about = f"simgpu-{simgpu.__version__}.dist-info"
    parts = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert names == sources | {f"{about}/{part}" for part in parts}


def test_sdist_has_the_packages_and_build_files(distributions, sources):
    with tarfile.open(distributions[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    others = "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", ".gitignore"
    assert names == sources.union(others)


def test_the_metadata_pass_the_check_of_the_index(distributions):
    pytest.importorskip("twine", reason="needs the extra `lint`")
    run(sys.executable, "-m", "twine", "check", "--strict", *distributions)


def test_install_from_a_clone_adds_no_files_to_it(clone, tmp_path):
    before = files_in(clone)
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile"]
    run(*pip, "--target", tmp_path / "here", clone)
    assert files_in(clone) == before
    assert before.intersection(DATA) <= files_in(tmp_path / "here")


BLOCK = """
import dataparallel, simgpu, torch
with simgpu.devices(2) as devices:
    model = dataparallel.DataParallel(torch.nn.Linear(3, 2).to(devices[0]), device_ids=devices)
    print(model(torch.ones(4, 3)).device, simgpu.__file__)
"""


def test_a_first_block_runs(user, installed):
    device, file = user("python", "-c", BLOCK).split()
    assert device == "simgpu:0"
    assert Path(file).is_relative_to(installed.parents[1])


def test_the_command_runs_a_program(user):
    counted = "import torch; print(torch.cuda.device_count())"
    assert user("simgpu", "run", "--devices", "3", "-c", counted) == "3\n"


SUITE = """
def test_it(devices):
    assert len(devices) == 3
"""


def test_a_suite_gets_the_fixture(user, tmp_path):
    (tmp_path / "test_it.py").write_text(SUITE)
    said = user("python", "-m", "pytest", "-p", "no:cacheprovider", "--device-count", "3")
    assert "1 passed" in said


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
