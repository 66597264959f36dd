"""Running a program as the module `__main__`, which it stays until the process ends.

`runpy` would name the program otherwise in `sys.argv[0]`, and take its module away when it returns,
while threads and exit handlers of the program still run.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from typing import Any


def folder_of(path: str) -> str:
    """Where the modules beside a program are: its folder, or the folder or zip file that it is."""
    return path if os.path.isdir(path) or _inside(path) else os.path.dirname(path)


def run_path(path: str) -> None:
    """Run a file, or the `__main__` of a folder or zip file; `path` is absolute."""
    spec = _inside(path)
    if spec is not None:
        _run_spec(spec)
        return
    main = types.ModuleType("__main__")
    main.__file__ = path
    if path.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", path)
        main.__loader__, code = compiled, compiled.get_code("__main__")
    else:
        source = SourceFileLoader("__main__", path)  # whose get_code would write bytecode beside it
        main.__loader__ = source
        code = compile(source.get_data(path), path, "exec", dont_inherit=True)
    _run(main, code)


def run_module(name: str) -> None:
    """Run a module, or the `__main__` of a package, which is there."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None:
        raise ImportError(f"no such module: {name}", name=name)
    sys.argv[0] = spec.origin
    _run_spec(spec)


def run_text(text: str, name: str) -> None:
    """Run Python of which there is no file; `name` stands for one in tracebacks."""
    _run(types.ModuleType("__main__"), compile(text, name, "exec", dont_inherit=True))


def _inside(path: str) -> ModuleSpec | None:
    """The module `__main__` in a folder or zip file; None if it has none, or is neither."""
    return PathFinder.find_spec("__main__", [path])


def _run_spec(spec: ModuleSpec) -> None:
    main = importlib.util.module_from_spec(spec)
    main.__name__ = "__main__"
    loader: Any = spec.loader
    _run(main, loader.get_code(spec.name))


def _run(main: types.ModuleType, code: types.CodeType | None) -> None:
    if code is None:
        raise ImportError(f"{main.__spec__} has no Python code: it cannot be run")
    sys.modules["__main__"] = main
    exec(code, vars(main))
