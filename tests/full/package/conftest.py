"""The sdist and the wheel, built once, and an environment that has the wheel."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT

SOURCES = (
    "simgpu",
    "dataparallel",
    "tests",
    ".gitignore",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
)


def run(*command, **options):
    """Run a command, show what it prints if it fails, and return its standard output."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def clone(tmp_path_factory):
    """A copy of the files that a package is built from, and of some that it must leave out."""
    folder = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="session")
def distributions(clone, tmp_path_factory):
    """The sdist, and the wheel that is built from it."""
    pytest.importorskip("build", reason="needs the extra `lint`")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "-o", folder, clone, cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="session")
def installed(distributions, tmp_path_factory):
    """The interpreter of a new environment that has the wheel, and PyTorch from this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", distributions[1])
    (packages,) = folder.glob("lib/*/site-packages")
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]))
    return python


@pytest.fixture
def user(installed, tmp_path):
    """Run a command of the new environment in an empty folder."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment["OMP_NUM_THREADS"] = "1"

    def call(command, *words):
        return run(installed.with_name(command), *words, cwd=tmp_path, env=environment)

    return call
