"""Runs the scripts of this folder by `python -m simgpu run`, as a user does who has no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.assurance.clients.support import SCRIPTS, needs_imports_of, shares_of_the_batch

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def simgpu_run(tmp_path_factory):
    """Run any script on so many devices: `simgpu_run(path, 2, *arguments, ours=True)`.

    `ours` puts the package dataparallel in the place of torch.nn.DataParallel, and `summary` ends
    the run with its table, but for a launcher, which does not compute. The script runs in a folder
    of its own, with nothing but the devices set, and may not download anything.
    """

    def run(path, devices, *arguments, ours=False, summary=True, folder=None, **variables):
        options = ["--devices", devices, *["--replace-data-parallel"][: int(ours)]]
        options += ["--summary"][: int(summary)]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
            ),
            "TOKENIZERS_PARALLELISM": "false",
        }
        for name in ("PYTHONWARNINGS", "SIMGPU_DEVICE_COUNT", "SIMGPU_AS_CUDA"):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", "simgpu", "run", *map(str, [*options, path, *arguments])],
            cwd=folder or tmp_path_factory.mktemp("run"),
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done

    return run


@pytest.fixture(scope="session")
def client(simgpu_run):
    """Run a script of this folder; returns what it printed as JSON in its last line.

    Skips the test where a library that the script imports is missing.
    Adds "batch": the share in percent that each device had of what the model was called with.
    With `launcher`, a module and its arguments that start ranks, one of them has to print.
    """

    def run(name, devices, *arguments, launcher=(), **options):
        needs_imports_of(name)
        program = [SCRIPTS / f"{name}.py", devices]
        if launcher:
            program = ["-m", devices, *launcher, SCRIPTS / f"{name}.py"]
            options["summary"] = False
        done = simgpu_run(*program, *arguments, **options)
        report = json.loads(done.stdout.splitlines()[-1])
        return {**report, "batch": shares_of_the_batch(done.stderr)}

    return run
