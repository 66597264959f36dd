"""What several tests of clients need: to be skipped without their library, and the summary read."""

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

# torchvision's default build needs CUDA's libraries: beside PyTorch's build for the CPU it installs
# but does not import. (Its own build for the CPU does.)
TRIED = ("torchvision",)
# What a library imports where it is installed, and does without where it is not.
IMPORTS_IF_INSTALLED = {"transformers": "torchvision", "sentence_transformers": "torchvision"}
# What a library needs for what the scripts do with it.
NEEDS_TOO = {"timm": "torchvision", "transformers": "accelerate"}


def imported(nodes):
    """The packages that statements import, other than Python's, NumPy, pytest and torch."""
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in names}
    return sorted(packages - sys.stdlib_module_names - {"numpy", "pytest", "torch"})


@cache
def why_not(library: str) -> str | None:
    """Why a library cannot be used, if it cannot."""
    if importlib.util.find_spec(library) is None:
        return f"{library} is not installed: python -m pip install -e '.[clients]'"
    if library in TRIED:
        command = [sys.executable, "-c", f"import {library}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return f"{library} does not import: {done.stderr.strip().splitlines()[-1]}"
    other = IMPORTS_IF_INSTALLED.get(library)
    if other is not None and importlib.util.find_spec(other) is not None:
        return why_not(other)
    return None


def needs(*libraries: str) -> None:
    """Skip what calls this unless all of them import."""
    for library in libraries:
        if (reason := why_not(library)) is not None:
            pytest.skip(reason)


def needs_imports_of(script: str) -> None:
    """Skip what calls this unless what a script imports at its beginning does import."""
    libraries = imported(ast.parse((SCRIPTS / f"{script}.py").read_text()).body)
    needs(*libraries, *(NEEDS_TOO[name] for name in libraries if name in NEEDS_TOO))


def shares_of_the_batch(summary):
    """The last column of `--summary`: `{"cuda:0": 50.0, "cuda:1": 50.0}`."""
    rows = re.findall(r"^(cuda:\d+) .* (\S+)%$", summary, re.MULTILINE)
    return {device: float(share) for device, share in rows}
