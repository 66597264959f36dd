"""What a command says where packages are missing that it needs and that simgpu does without."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping


def missing_packages(what: str, needed: Mapping[str, str]) -> bool:
    """Whether a package is missing that `what` needs; says which, and how it is installed.

    `needed` has packages by the names under which they are imported.
    """
    missing = [package for name, package in needed.items() if not importlib.util.find_spec(name)]
    if missing:
        print(f"{what} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    return bool(missing)
