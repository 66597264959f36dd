"""Running a program as the module `__main__`, which it stays until the process ends.

`runpy` would name the program otherwise in `sys.argv[0]`, and take its module away when it returns,
while threads and exit handlers of the program still run.
"""

from __future__ import annotations

import builtins
import importlib.util
import linecache
import os
import sys
import types
from importlib.machinery import (
    BuiltinImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from typing import Any


def begin() -> None:
    """Make `__main__` the empty module that `python` begins with; what is run fills it."""
    main: Any = types.ModuleType("__main__")
    main.__builtins__, main.__loader__ = builtins, BuiltinImporter
    if sys.version_info < (3, 14):  # which makes it when it is asked for
        main.__annotations__ = {}
    sys.modules["__main__"] = main


def inside(path: str) -> ModuleSpec | None:
    """The module `__main__` in a folder or zip file; None if it has none, or is neither."""
    spec = PathFinder.find_spec("__main__", [path])
    return spec if spec is not None and spec.has_location else None


def folder_of(path: str) -> str:
    """Where the modules beside a program are: its folder, or the folder or zip file that it is.

    Beside a link to a file stands nothing: what counts is where the file is.
    """
    return path if inside(path) else os.path.dirname(os.path.realpath(path))


def run_path(path: str) -> None:
    """Run a file, or the `__main__` of a folder or zip file; `path` is absolute."""
    spec = inside(path)
    if spec is not None:
        _run_spec(spec)
        return
    source = SourceFileLoader("__main__", path)  # whose get_code would write bytecode beside it
    data, loader = source.get_data(path), source
    if path.endswith(".pyc") or data.startswith(importlib.util.MAGIC_NUMBER):
        compiled = SourcelessFileLoader("__main__", path)
        _run(compiled.get_code("__main__"), __file__=path, __cached__=None, __loader__=compiled)
        return
    code = _compiled(data, path)
    _run(code, __file__=path, __cached__=None, __loader__=loader)


def run_module(name: str) -> None:
    """Run a module, or the `__main__` of a package, which is there."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None:
        raise ImportError(f"no such module: {name}", name=name)
    sys.argv[0] = spec.origin
    _run_spec(spec)


def run_text(text: str) -> None:
    """Run Python of which there is no file."""
    if sys.version_info >= (3, 13):  # whose tracebacks show its lines
        lines = [f"{line}\n" for line in text.splitlines()]
        linecache.cache["<string>"] = (len(text), None, lines, "<string>")
    _run(_compiled(text, "<string>"))


def run_input(source: bytes) -> None:
    """Run what stood on the standard input."""
    _run(_compiled(source, "<stdin>"), __file__="<stdin>", __cached__=None)


def _compiled(source: str | bytes, name: str) -> types.CodeType:
    code: types.CodeType = compile(source, name, "exec", dont_inherit=True)
    return code


def _run_spec(spec: ModuleSpec) -> None:
    loader: Any = spec.loader
    module = importlib.util.module_from_spec(spec)  # which knows what a module is told of itself
    told = {name: value for name, value in vars(module).items() if name != "__name__"}
    _run(loader.get_code(spec.name), **told)


def _run(code: types.CodeType | None, **told: Any) -> None:
    """Run `code` in the module `__main__`, which is told this of itself."""
    main = vars(sys.modules["__main__"])
    main.update(told)
    if code is None:
        raise ImportError(f"{main['__spec__']} has no Python code: it cannot be run")
    exec(code, main)
