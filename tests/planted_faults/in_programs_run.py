"""Faults planted in `simgpu run`: which words are for the program, and what the program finds."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulator.timing import test_command as command
from tests.support.plant import fault, run
from tests.tools import test_main_module as main_module
from tests.tools import test_program_words as program_words


def main_modules() -> None:
    """The property of programs that become the main module, each in a folder of its own."""
    for way in main_module.PATHS:
        with tempfile.TemporaryDirectory() as folder, kept_main():
            main_module.test_a_program_stays_the_main_module_and_inherits_nothing(
                None, Path(folder), way
            )


@contextlib.contextmanager
def kept_main() -> Iterator[None]:
    """What becomes the main module is forgotten at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        yield


def codings() -> None:
    with kept_main():
        main_module.test_what_stands_on_the_standard_input_is_in_its_own_coding(None, "latin-1")


def folders() -> None:
    for way in main_module.PATHS[:-1]:
        with tempfile.TemporaryDirectory() as folder:
            main_module.test_modules_are_looked_for_beside_a_file_that_is_linked_to(
                Path(folder), way, True
            )


def words() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "here.py"
        here.touch()
        run(
            program_words.test_all_behind_the_name_of_a_program_is_for_the_program,
            here=str(here),
        )


PROGRAMS_RUN = [
    fault(
        "what the program was given is taken for the number of devices",
        "simgpu._cli.estimates:ClockUntilExit._run_with",
        "command[command.index(name)] = value",
        "command = [value if word == name else word for word in command]",
        command.test_only_a_process_that_is_alone_is_run_again,
    ),
    fault(
        "a program is run in the module of the command",
        "simgpu._cli.main_module:begin",
        'sys.modules["__main__"] = main',
        "pass",
        main_modules,
    ),
    fault(
        "a program inherits how the simulator's own modules are compiled",
        "simgpu._cli.main_module:_compiled",
        "dont_inherit=True",
        "flags=16777216",  # annotations are texts
        main_modules,
    ),
    fault(
        "the main module has builtins that are no module",
        "simgpu._cli.main_module:begin",
        "main.__builtins__, main.__loader__ = builtins, BuiltinImporter",
        "main.__builtins__, main.__loader__ = vars(builtins), BuiltinImporter",
        main_modules,
        raises=AttributeError,
    ),
    fault(
        "a folder or a zip file that is run is not where its modules are",
        "simgpu._cli.main_module:folder_of",
        "path if inside(path) else",
        "",
        folders,
    ),
    fault(
        "modules are looked for beside a link",
        "simgpu._cli.main_module:folder_of",
        "os.path.realpath(path)",
        "path",
        folders,
    ),
    fault(
        "the standard input is read as other text is",
        "simgpu._cli.main_module:run_input",
        "_compiled(source,",
        '_compiled(source.decode(errors="replace"),',
        codings,
    ),
    fault(
        "a program that was read is not there for other numbers of devices",
        "simgpu._cli.run:_clock",
        "report, again, program.source)",
        "report, again)",
        words,
    ),
    fault(
        "a script is run as code with other numbers of devices",
        "simgpu._cli.run:_clock",
        '.get(program.kind, "--")',
        '.get(program.kind, "-c")',
        words,
    ),
    fault(
        "argparse looks for options among the words of a program",
        "simgpu._cli.program_words:cut",
        "return own, rest",
        "return own + rest[1:], rest[:1]",
        words,
        raises=BaseException,
    ),
    fault(
        "a module behind -m without a space is an option",
        "simgpu._cli.program_words:_names_a_program",
        "word[:2] in",
        "word in",
        words,
        raises=BaseException,
    ),
    fault(
        "a value below 0 is an option",
        "simgpu._cli.program_words:cut",
        'not rest[0].startswith("--")',
        'not rest[0].startswith("-")',
        words,
        raises=BaseException,
    ),
    fault(
        "an option that is shortened has no value",
        "simgpu._cli.program_words:_takes_a_value",
        "name.startswith(word)",
        "name == word",
        words,
        raises=BaseException,
    ),
]
