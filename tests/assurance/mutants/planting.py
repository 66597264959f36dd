"""Put a mutant into this process, which dies with it: into the functions that are here, or anew.

A module that has not been imported yet is imported with the mutant's text. In one that has been,
each function whose code the change reaches gets the code that the mutant's text compiles to; what
ran when the module was imported cannot be changed so (`Unreached`).
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType

from tests.assurance.mutants.mutants import ROOT

CO_NEWLOCALS = inspect.CO_NEWLOCALS


class Unreached(Exception):
    """The change is in code that has run already, or in no function that can be found."""


def functions_by_file() -> dict[str, list[FunctionType]]:
    """Every function there is, by the file that it is from."""
    gc.unfreeze()
    found: dict[str, list[FunctionType]] = {}
    for it in gc.get_objects():
        if type(it) is FunctionType:
            found.setdefault(it.__code__.co_filename, []).append(it)
    gc.freeze()
    return found


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def plant(path: str, text: bytes, functions: dict[str, list[FunctionType]]) -> None:
    """Let the rest of this process run `text` in the place of the file `path`."""
    file = str(ROOT / path)
    if module_name(path) not in sys.modules:
        sys.meta_path.insert(0, _Finder(module_name(path), file, text))
        return
    old = compile((ROOT / path).read_bytes(), file, "exec", dont_inherit=True)
    new = compile(text, file, "exec", dont_inherit=True)
    here = functions.get(file, [])
    reached = False
    for before, after in _changed(old, new):
        if not before.co_flags & CO_NEWLOCALS:  # the body of a module or class, which has run
            raise Unreached(path)
        for function in here:
            if function.__code__ == before:
                function.__code__ = after
                reached = True
    if not reached:
        raise Unreached(path)


def is_bypassed(path: str) -> bool:
    """Whether the file `path` was imported as it stands in its folder after `plant` was told of it.

    Who comes before the one that imports mutants, such as pytest for the files of its plugins,
    would let each of them survive.
    """
    module = sys.modules.get(module_name(path))
    return module is not None and not isinstance(module.__loader__, _Loader)


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Code that differs by itself or by what it defines, outermost first."""
    nested = [_nested(old), _nested(new)]
    alike = [code.co_name for code in nested[0]] == [code.co_name for code in nested[1]]
    if not alike or _own(old) != _own(new):
        yield old, new
    pairs = list(zip(*nested, strict=False)) if alike else []
    for before, after in pairs:
        inner = list(_changed(before, after))
        # A function that is made anew at each call has its code from the function around it.
        if inner and before.co_flags & CO_NEWLOCALS and inner[0] != (before, after):
            yield before, after
        yield from inner


def _nested(code: CodeType) -> list[CodeType]:
    return [it for it in code.co_consts if isinstance(it, CodeType)]


def _own(code: CodeType) -> Sequence[object]:
    constants = [(type(it), repr(it)) for it in code.co_consts if not isinstance(it, CodeType)]
    handlers = getattr(code, "co_exceptiontable", b"")  # within co_code in Python 3.10
    return code.co_code, constants, code.co_names, code.co_varnames, handlers


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, file: str, text: bytes) -> None:
        self.name, self.file, self.text = name, file, text

    def find_spec(
        self, name: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        loader = _Loader(name, self.file)
        loader.text = self.text
        return importlib.util.spec_from_file_location(name, self.file, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    text: bytes

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)
