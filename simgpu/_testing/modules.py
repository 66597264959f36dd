"""`strategies.load_module`: a file of tests as a module, where no import finds it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_module(beside: str, path: str) -> ModuleType:
    """Return a file of tests as a module, loaded once: for regression tests of its properties.

    Under `--import-mode=importlib` pytest puts no folder of tests on `sys.path`, so that one test
    file cannot import another.

    Args:
        beside: `__file__` of the caller.
        path: the file, such as "tests/test_it.py", relative to the caller's folder or to any
            folder around it.

    Raises FileNotFoundError where there is no such file.
    """
    for root in Path(beside).resolve().parents:
        if (root / path).is_file():
            return _load(root, Path(path))
    raise FileNotFoundError(f"no {path} in the folder of {beside}, or in one around it")


def _load(root: Path, path: Path) -> ModuleType:
    file = root / path
    for module in sys.modules.copy().values():
        known = getattr(module, "__file__", None)
        if isinstance(known, str) and known.endswith(path.name) and Path(known).resolve() == file:
            return module
    package = path.parent / "__init__.py"
    if path.name != "__init__.py" and (root / package).is_file():
        _load(root, package)  # what relative imports in the file start from
    parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
    spec = importlib.util.spec_from_file_location(".".join(parts), file)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
