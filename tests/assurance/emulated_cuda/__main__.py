"""`python -m tests.assurance.emulated_cuda build | run | suite | compare | record`"""

import argparse
import os
import sys
from pathlib import Path

from tests.assurance.emulated_cuda import environment, record, suite
from tests.assurance.emulated_cuda.build import BuildError, build
from tests.support.cuda_code import SUBJECTS


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tests.assurance.emulated_cuda",
        description="PyTorch's CUDA build on an emulated CUDA.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("build", help="compile the libraries for the installed torch")
    one.add_argument("--force", action="store_true", help="also where they are there already")
    one = commands.add_parser("run", help="run a command on emulated GPUs")
    environment.add_options(one)
    one.add_argument("words", nargs="+", metavar="COMMAND", help="behind --")
    one = commands.add_parser("suite", help="pytest --devices cuda, held against expected.toml")
    environment.add_options(one)
    one.add_argument("--workers", type=int, default=1, metavar="N", help="of pytest-xdist (1)")
    one.add_argument("--limit", type=float, default=7200, metavar="SECONDS", help="default 7200")
    one.add_argument("--texts", action="store_true", help="print whole tracebacks")
    one.add_argument("-k", metavar="EXPRESSION", help="only such tests, as of pytest")
    one.add_argument(
        "paths", nargs="*", default=suite.FOLDERS, metavar="PATH", help="in this order"
    )
    for name, text in (
        ("compare", "hold simulated devices against CUDA's code, subject by subject"),
        ("record", "write what CUDA's code did into tests/recordings/emulated_cuda"),
    ):
        one = commands.add_parser(name, help=text)
        environment.add_options(one, devices=3)
        one.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    one.add_argument(
        "--hardware",
        type=Path,
        metavar="FOLDER",
        help="record the GPUs of this machine, into a folder",
    )
    one.add_argument("--processes", type=int, default=1, metavar="N", help="at once (1)")
    return parser


def _suite(options):
    result = suite.run(
        environment.machine_of(options),
        options.paths,
        options.workers,
        options.limit,
        ["-k", options.k] if options.k else [],
    )
    print(suite.report(result, options.texts))
    return 0 if result.as_expected else 1


def main(argv=None):
    options = _parser().parse_args(argv)
    try:
        if options.command == "build":
            build(options.force)
            return 0
        if options.command == "run":
            machine = environment.machine_of(options)
            os.execvpe(options.words[0], options.words, machine.environment())
        if options.command == "suite":
            return _suite(options)
        names = options.subjects or SUBJECTS
        if options.command == "record" and options.hardware:
            machine = environment.Hardware.here()
            record.save(names, machine, options.hardware, options.processes)
            return 0
        machine = environment.machine_of(options)
        if options.command == "compare":
            return record.compare(names, machine)
        record.save(names, machine)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
