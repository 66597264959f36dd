"""What `simgpu run` does: makes the devices of this process, and runs a program as `__main__`."""

from __future__ import annotations

import argparse
import atexit
import builtins
import contextlib
import importlib
import importlib.util
import linecache
import os
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import machinery
from typing import TYPE_CHECKING, Any

from simgpu._util.naming import RUN_FOLDER, plural

if TYPE_CHECKING:
    from pathlib import Path

    from simgpu._explore.asynchronous.executor import Asynchronous


# Running a program as the module `__main__`, which it stays until the process ends.
#
# `runpy` would name the program otherwise in `sys.argv[0]`, and take its module away when it
# returns, while threads and exit handlers of the program still run.


def begin_main() -> None:
    """Make `__main__` the empty module that `python` begins with; what is run fills it."""
    main: Any = types.ModuleType("__main__")
    main.__builtins__, main.__loader__ = builtins, machinery.BuiltinImporter
    if sys.version_info < (3, 14):  # which makes it when it is asked for
        main.__annotations__ = {}
    sys.modules["__main__"] = main


def main_inside(path: str) -> machinery.ModuleSpec | None:
    """The module `__main__` in a folder or zip file; None if it has none, or is neither."""
    spec = machinery.PathFinder.find_spec("__main__", [path])
    return spec if spec is not None and spec.has_location else None


def folder_of(path: str) -> str:
    """Where the modules beside a program are: its folder, or the folder or zip file that it is.

    A link to a file counts as the file itself.
    """
    return path if main_inside(path) else os.path.dirname(os.path.realpath(path))


def run_path(path: str) -> None:
    """Run a file, or the `__main__` of a folder or zip file; `path` is absolute."""
    spec = main_inside(path)
    if spec is not None:
        _run_spec(spec)
        return
    loader: Any = machinery.SourceFileLoader("__main__", path)
    data = loader.get_data(path)
    if path.endswith(".pyc") or data.startswith(importlib.util.MAGIC_NUMBER):
        loader = machinery.SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
    else:
        code = _compiled(data, path)  # by its get_code, there would be bytecode beside it
    _run_code(code, __file__=path, __cached__=None, __loader__=loader)


def _module_spec(name: str) -> machinery.ModuleSpec | str:
    """The spec of what `-m name` runs: a module, or a package's `__main__`; else the error's text.

    Imports the packages around it, as `python -m` does.
    """
    missing = f"no such module: {name}"
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            missing = f"the package {name} has no module __main__ to run"
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # of something else, in a package around it
        spec = None
    return missing if spec is None or spec.origin is None else spec


def run_text(text: str) -> None:
    """Run Python of which there is no file."""
    if sys.version_info >= (3, 13):  # whose tracebacks show its lines
        lines = [f"{line}\n" for line in text.splitlines()]
        linecache.cache["<string>"] = (len(text), None, lines, "<string>")
    _run_code(_compiled(text, "<string>"))


def run_input(source: bytes) -> None:
    """Run the program from standard input."""
    _run_code(_compiled(source, "<stdin>"), __file__="<stdin>", __cached__=None)


def _compiled(source: str | bytes, name: str) -> Any:
    return compile(source, name, "exec", dont_inherit=True)


def _run_spec(spec: machinery.ModuleSpec) -> None:
    loader: Any = spec.loader
    module = importlib.util.module_from_spec(spec)  # which has the attributes of a module
    attributes = {name: value for name, value in vars(module).items() if name != "__name__"}
    _run_code(loader.get_code(spec.name), **attributes)


def _run_code(code: types.CodeType | None, **attributes: Any) -> None:
    """Run `code` in the module `__main__`, which gets these attributes."""
    main = vars(sys.modules["__main__"])
    main.update(attributes)
    if code is None:
        raise ImportError(f"{main['__spec__']} has no Python code: it cannot be run")
    exec(code, main)


# What calls a program, or runs what it has left.
_BEFORE_PROGRAMS = (__name__, "contextlib")
_QUEUES = "simgpu._explore.asynchronous"


@dataclass(frozen=True)
class Program:
    """What to run, in the form of `python`'s command line."""

    kind: str
    """ "script", "module", "code" or "stdin"."""
    text: str
    """The path, the module's name, the code itself, or "-"."""
    arguments: tuple[str, ...]
    source: bytes | None = None
    """The standard input, if the program was read from it."""


def make_devices(options: argparse.Namespace) -> str | None:
    """Make the devices of this process and of those it starts; returns why not, where refused.

    Without an option, the variables that the process has inherited count.
    """
    # PyTorch's own remark on an environment without NumPy: not about the script, which needs none.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    from simgpu._config import options as config_options

    chosen = {name: getattr(options, name) for name in config_options.OPTIONS}
    given = {name: value for name, value in chosen.items() if value is not None}
    texts = {**config_options.variables(), **given}
    count = options.devices or os.environ.get(config_options.COUNT) or 1
    config_options.clear_variables()
    os.environ.pop(RUN_FOLDER, None)  # of a run that has started this one
    import torch  # noqa: F401  # makes no devices, without the variables

    from simgpu._core import world
    from simgpu._cuda.nvml import process, run_folder
    from simgpu._devices import block
    from simgpu.errors import RealCudaError

    # As in a child process that the script starts: its workers have the devices too.
    named = ("force" if options.force else "1") if options.name == "cuda" else ""
    config_options.set_variables(count, texts, named)
    try:
        block.start_process_devices({name: f"--{name} {value}" for name, value in given.items()})
    except (ValueError, RealCudaError) as error:
        return str(error)
    here = world.current_world()
    assert here is not None, "it has been made"
    smi = options.name == "cuda" and (options.force or not run_folder.has_real_smi())
    try:
        run_folder.make(" ".join(options.program), here.machine, smi)
    except OSError as error:
        print(f"simgpu run: no nvidia-smi shows these devices: {error}", file=sys.stderr)
    process.join_run()
    return None


def prepare(program: Program) -> str | None:
    """Set sys.argv and sys.path for the program; returns why it cannot run."""
    begin_main()
    name = {"code": "-c", "module": "-m"}.get(program.kind, program.text)
    sys.argv = [name, *program.arguments]
    script = _path(program) if program.kind == "script" else None
    if not getattr(sys.flags, "safe_path", False):
        there = os.getcwd() if program.kind == "module" else ""
        sys.path[0] = there if script is None else folder_of(script)
    elif script is not None and main_inside(script):
        sys.path.insert(0, script)
    spec = _module_spec(program.text) if program.kind == "module" else None
    return spec if isinstance(spec, str) else None


def _path(script: Program) -> str:
    """Where it is; ".." stays, for behind a link it means another folder."""
    return os.path.join(os.getcwd(), script.text)


def run_script(program: Program, options: argparse.Namespace) -> None:
    """Run the program, for which all is prepared, as `python` does."""
    if options.replace_data_parallel:
        # Looked up only here and only when asked for: simgpu does without that package.
        nn: Any = importlib.import_module("torch.nn")
        ours = importlib.import_module("dataparallel")
        # The module of the class, which torch.nn.parallel hides behind the function of its name.
        theirs: Any = importlib.import_module("torch.nn.parallel.data_parallel")
        nn.DataParallel = nn.parallel.DataParallel = theirs.DataParallel = ours.DataParallel
        nn.parallel.data_parallel = theirs.data_parallel = ours.data_parallel
    _watch_until_exit(options.trace, options.summary)
    try:
        with contextlib.ExitStack() as stack:
            if options.races:
                stack.enter_context(reporting_races())
            if options.lazy or options.async_seed is not None:
                stack.enter_context(overlapping(options.async_seed))
            _run(program)
    except BaseException as error:
        _hide_our_frames_of(error)
        raise


def _hide_our_frames_of(ended: BaseException) -> None:
    """End the process with the traceback of `ended` that it would have without simgpu."""
    hook = sys.excepthook  # the program's own, if it has one

    def report(kind: Any, error: Any, traceback: types.TracebackType | None) -> None:
        if error is ended:
            traceback = _after_our_frames(traceback)
            error = error.with_traceback(traceback)
        hook(kind, error, traceback)

    sys.excepthook = report


def _after_our_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """What comes after the frames of the command, which begin each traceback.

    Nothing, where the program has ended, and what is left of its work is the command's to do.
    """
    began = False
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__"))
        began = began or name == __name__
        if began and name not in _BEFORE_PROGRAMS and not name.startswith(_QUEUES):
            break
        traceback = traceback.tb_next
    return traceback


def _run(program: Program) -> None:
    if program.kind == "module":
        spec = _module_spec(program.text)
        if isinstance(spec, str):
            raise ImportError(spec, name=program.text)
        sys.argv[0] = str(spec.origin)
        _run_spec(spec)
    elif program.kind == "script":
        run_path(_path(program))
    elif program.source is not None:
        run_input(program.source)
    else:
        run_text(program.text)


@contextlib.contextmanager
def overlapping(seed: int | None) -> Iterator[Asynchronous]:
    """Make the streams of a program overlap until the process ends.

    If the program ends without an error, its queues are run, and unreported errors are raised.
    """
    from simgpu._explore.asynchronous import executor as asynchronous_executor

    executor, status = asynchronous_executor.begin(seed), None
    try:
        yield executor
    except SystemExit as ended:
        status = ended
        if ended.code:
            raise
    executor.finish()
    executor.check_all()
    if status is not None:
        raise status


@contextlib.contextmanager
def reporting_races() -> Iterator[None]:
    """Report the races of a program on stderr; it then ends with status 1, or its own if not 0.

    "no race" is printed too, to show that the program was watched.
    """
    from simgpu._explore.races.detector import races

    with races() as found:
        try:
            yield
        except SystemExit as ended:
            if ended.code or not found:
                raise
        finally:
            for race in found:
                print(race, file=sys.stderr)
            count = plural(len(found), "race") if found else "no race"
            print(f"simgpu run --races: {count}", file=sys.stderr)
    if found:
        sys.exit(1)


def _watch_until_exit(path: Path | None, summary: bool) -> None:
    """Watch the devices for `--trace` and `--summary`, which are written when the process ends.

    That is when its threads have ended, also those that the script did not wait for, and the exit
    handlers of the script have run; also where it ended in an error.
    """
    if path is None and not summary:
        return
    from simgpu._profiling.summary import watch

    watching = watch(None if path is None else str(path), sys.stderr if summary else None)
    watching.__enter__()
    atexit.register(_end, watching, os.getpid())


def _end(watching: contextlib.AbstractContextManager[None], process: int) -> None:
    if os.getpid() == process:  # and not a child that it forked
        watching.__exit__(None, None, None)
