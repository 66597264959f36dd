"""`simgpu run`: reads and checks its arguments, and starts the program."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simgpu._cli.arguments import device_count, output_file
from simgpu._cli.estimates import ClockUntilExit
from simgpu._cli.run_script import Program, main_inside, make_devices, prepare, run_script
from simgpu._config.options import ASYNCHRONOUS, OPTIONS
from simgpu._util.naming import MAX_DEVICES, STRICT


def add_arguments(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run a Python program on simulated GPUs",
        usage="%(prog)s [options] (SCRIPT | - | -m MODULE | -c CODE) [ARGS...]",
        description="Run a Python program on simulated GPUs. A program that uses CUDA needs no "
        "change.",
    )
    _add_options(run)
    _add_program(run)
    run.set_defaults(start=start)


def cut(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words after `run` that are options, and those from the program's name.

    The program begins at the first word that is neither an option nor an option's value: a path,
    "-", "--", "-m" or "-c". `argparse` cannot split them: it looks for the command's options behind
    the program's name too, and drops "--" and all that follows `-cTEXT`. A value is joined to its
    option: it may begin with "-", as a number below 0 does.
    """
    reader = argparse.ArgumentParser()
    _add_options(reader)
    actions = reader._option_string_actions
    own: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        if rest[0][:2] in ("-m", "-c"):
            break
        word = rest.pop(0)
        # Options may be shortened.
        meant = [word] if word in actions else [name for name in actions if name.startswith(word)]
        takes_value = len(meant) == 1 and actions[meant[0]].nargs is None
        if takes_value and rest and not rest[0].startswith("--"):
            word += f"={rest.pop(0)}"
        own.append(word)
    return own, rest


def _add_options(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--devices",
        type=device_count,
        metavar="N",
        help=f"number of simulated devices, from 1 to {MAX_DEVICES} "
        "(default: SIMGPU_DEVICE_COUNT, or 1)",
    )
    for name, option in OPTIONS.items():
        run.add_argument(f"--{name}", **option.arguments)
    run.add_argument(
        "--as",
        dest="name",
        choices=("cuda", "simgpu"),
        default="cuda",
        help="name of the simulated devices in the program: cuda (default; simgpu works too), or "
        "only simgpu",
    )
    flags = {
        "--force": "simulate also on a machine with real GPUs, which the program then cannot use",
        "--replace-data-parallel": "use dataparallel.DataParallel in place of "
        "torch.nn.DataParallel",
    }
    for name, text in flags.items():
        run.add_argument(name, action="store_true", help=text)
    _add_watching(run)


def _add_watching(run: argparse.ArgumentParser) -> None:
    """Add the options that watch the program and report."""
    run.add_argument(
        "--trace",
        type=output_file,
        metavar="FILE",
        help="write a timeline of all kernels and copies to FILE, for Perfetto or chrome://tracing",
    )
    flags = {
        "--summary": "print a table on stderr that has for each device the number of kernels, the "
        "bytes copied in and out, the peak memory, and the share of the work (bytes written by "
        "kernels) and of the batch (bytes of the inputs of models)",
        "--races": "report data races on stderr: memory that two streams, or a stream and the "
        "host, use without synchronization; the exit status is 1 if there is one",
        "--strict": "warn about bugs that cause no error on a GPU: state that replicas lose, "
        "epochs that all have the same order, files that several ranks write (same as "
        "SIMGPU_STRICT=1)",
    }
    for name, text in flags.items():
        run.add_argument(name, action="store_true", help=text)
    run.add_argument("--async", dest="lazy", **ASYNCHRONOUS["async"])
    run.add_argument("--async-seed", **ASYNCHRONOUS["async-seed"])
    run.add_argument(
        "--clock",
        metavar="NAME[,NAME...]",
        help="estimate the time on this GPU model (or on one model per device), and print it on "
        "stderr; CUDA events and --trace then show estimated time, and --summary also runs the "
        "program again with other numbers of devices, for a table of speed-ups",
    )
    run.add_argument(
        "--no-table",
        dest="table",
        action="store_false",
        help="with --clock and --summary: do not run the program again for the table of speed-ups",
    )
    run.add_argument(
        "--topology",
        metavar="NAME",
        help="with --clock: how the devices are connected: pcie (default), nvlink, dgx-a100, or "
        "several machines, such as 2x8 for two machines with 8 GPUs each",
    )
    run.add_argument("--estimate-to", type=output_file, metavar="FILE", help=argparse.SUPPRESS)


def _add_program(run: argparse.ArgumentParser) -> None:
    """Add the ways to name a program, for the help: `cut` takes them away before."""
    for name, what, metavar in (("-m", "a module", "MODULE"), ("-c", "code", "CODE")):
        run.add_argument(
            name,
            nargs=argparse.REMAINDER,
            metavar=metavar,
            help=f"run {what}, like `python {name} {metavar}`; all words after it are its "
            "arguments",
        )
    run.add_argument(
        "script",
        nargs="?",
        metavar="SCRIPT",
        help="a Python file, a folder or zip file with a __main__.py, or - for standard input",
    )
    run.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="ARGS",
        help="arguments of the program; options of this command must come before SCRIPT",
    )


def start(options: argparse.Namespace) -> int:
    """Check what the arguments name, and run the program."""
    program = _program(options)
    _refuse_to_watch_a_launcher(options, program)
    clock = ClockUntilExit(options, os.environ, program.source)
    if options.strict:
        os.environ[STRICT] = "1"
    if options.estimate_to is not None:  # another run, for the table of the first one
        options.trace, options.summary, options.races = None, False, False
    if options.clock is None and options.topology is not None:
        options.parser.error("--topology describes the links of --clock: add --clock")
    refusal = make_devices(options) or prepare(program)
    if refusal is None and options.clock is not None:
        refusal = clock.start()
    if refusal is not None:
        options.parser.error(refusal)
    try:
        run_script(program, options)
    except SystemExit as ended:
        if ended.code == 2:  # as argparse ends where a program does not know an argument
            _warn_misplaced_options(options.parser, program)
        raise
    return 0


def _warn_misplaced_options(parser: argparse.ArgumentParser, program: Program) -> None:
    """Warn on stderr about our options that come after SCRIPT and so went to the program."""
    names = [word.partition("=")[0] for word in program.arguments if word.startswith("--")]
    behind = [name for name in names if name in parser._option_string_actions]
    if behind:
        print(
            f"{parser.prog}: {', '.join(behind)} went to the program, after whose name it comes; "
            f"options for {parser.prog} come before it",
            file=sys.stderr,
        )


# What starts other processes, and computes nothing itself.
_LAUNCHERS = {
    "module": ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    "script": ("torchrun", "accelerate"),
}


def _refuse_to_watch_a_launcher(options: argparse.Namespace, program: Program) -> None:
    """End with a message where options that look at one process would look at a launcher."""
    name = os.path.basename(program.text) if program.kind == "script" else program.text
    if name not in _LAUNCHERS.get(program.kind, ()):
        return
    watching = {
        "--trace": options.trace is not None,
        "--summary": options.summary,
        "--races": options.races,
        "--async": options.lazy,
        "--async-seed": options.async_seed is not None,
        "--clock": options.clock is not None,
    }
    watched = [name for name, given in watching.items() if given]
    if watched:
        options.parser.error(
            f"{', '.join(watched)} would only watch {name}, which starts the processes that "
            f"compute: put it behind, as in `{name} ... -m simgpu run {watched[0]} ... SCRIPT`"
        )


def _program(options: argparse.Namespace) -> Program:
    """Return the program that is to run; ends with a message where there is none."""
    error = options.parser.error
    words = list(options.program)
    kind = {"-m": "module", "-c": "code"}.get(words[0][:2]) if words else None
    if kind is not None:
        attached = words.pop(0)[2:]
        words[:0] = [attached] * bool(attached)
        if not words:
            error(f"-{kind[0]} needs a {kind.upper()} after it")
    elif words[:1] == ["--"]:
        del words[0]
    if not words:
        error("name a program to run: SCRIPT, -m MODULE, -c CODE, or - for standard input")
    program = Program(kind or "script", words[0], tuple(words[1:]))
    if kind is None and program.text == "-":
        source = b"" if sys.stdin is None else sys.stdin.buffer.read()
        return replace(program, kind="stdin", source=source)
    if program.kind == "module":
        first = program.text.partition(".")[0]
        here = importlib.machinery.PathFinder.find_spec(first, [os.getcwd()])
        if first in ("", "__main__") or not (here or _is_module(first)):
            error(f"no such module: {program.text}")
    elif program.kind == "script":
        path = program.text
        if os.path.isdir(path) and not main_inside(path):
            error(f"the folder {path} has no __main__.py to run")
        if not os.path.exists(path):
            error(f"no such script: {path}{_meant_by(path)}")
    return program


def _meant_by(name: str) -> str:
    """The hint for a word that is not a script but something else that Python knows."""
    if name in ("python", "python3"):
        return "; leave that word out: what comes after `run` is what comes after `python`"
    module = {"torchrun": "torch.distributed.run"}.get(name, name)
    if name.isidentifier() and _is_module(module):
        return f"; the module runs by -m {module}"
    return ""


def _is_module(name: str) -> bool:
    """Whether Python would import it; `__main__` is this process's own, and has no spec."""
    return name != "__main__" and importlib.util.find_spec(name) is not None
