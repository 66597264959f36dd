"""`python -m tests.assurance.upstream --pytorch DIR --devices 3 [--ours] [FILE ...]`"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.assurance import expected
from tests.assurance.upstream import files, processes

TABLE = Path(__file__).with_name("expected.toml")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.assurance.upstream",
        description="Run PyTorch's own test files on simulated devices, and compare with "
        "tests/assurance/upstream/expected.toml. "
        "The exit status is 0 if everything was as expected.",
    )
    parser.add_argument(
        "--pytorch",
        type=Path,
        required=True,
        metavar="DIR",
        help="a checkout of PyTorch, or a folder with its test files",
    )
    parser.add_argument("--devices", type=int, default=3, metavar="N", help="default 3")
    parser.add_argument(
        "--ours",
        action="store_true",
        help="with dataparallel.DataParallel in the place of torch.nn.DataParallel",
    )
    parser.add_argument(
        "-k",
        dest="patterns",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only tests like TestCuda.test_stream*; may be given more than once",
    )
    parser.add_argument(
        "--limit", type=float, default=1800, metavar="SECONDS", help="for one file (default 1800)"
    )
    parser.add_argument(
        "--test-limit", type=float, default=120, metavar="SECONDS", help="for one test (120)"
    )
    parser.add_argument(
        "--expected", type=Path, default=TABLE, metavar="FILE", help="another table"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write all outcomes there, with tracebacks"
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="default: those of files.py")
    return parser


def _error(text: str) -> str:
    """The line of a traceback that names the error; what PyTorch's harness adds is left out."""
    lines = [line for line in text.partition("\nTo execute this test")[0].splitlines() if line]
    named = [line for line in lines if not line[0].isspace()] or lines or [""]
    return named[-1][:200]


def _print(name: str, found: expected.Comparison) -> None:
    print(f"{name}: {found.counts()}")
    for test, text in found.failures.items():
        print(f"  FAILED {test}\n      {_error(text)}")
    for test in found.passes:
        print(f"  PASSED {test}, which expected.toml expects to fail")
    if found.broken:
        print(f"  BROKEN {found.broken}")
    sys.stdout.flush()


def entries_for(
    name: str, entries: Sequence[expected.Entry], *, ours: bool
) -> list[expected.Entry]:
    """The entries for a file that is run with our DataParallel, or with PyTorch's."""
    whose = ("both", "ours" if ours else "pytorch")
    return [entry for entry in entries if entry.file == name and entry.data_parallel in whose]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the files; 0 if all was as expected, 1 if not, 2 for a wrong call."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.pytorch.is_dir():
        parser.error(f"--pytorch {options.pytorch}: no such folder")
    try:
        entries = expected.read(options.expected)
        found_files = [files.find(options.pytorch, name) for name in options.files]
    except (files.NotFound, OSError, ValueError) as error:
        parser.error(str(error))
    if not options.files:
        for name in files.DEFAULT:
            try:
                found_files.append(files.find(options.pytorch, name))
            except files.NotFound as error:
                print(f"left out: {error}")
        if not found_files:
            parser.error(f"--pytorch {options.pytorch}: none of PyTorch's test files is there")
    good, report = True, {}
    for file in found_files:
        print(f"{file.name} ...", file=sys.stderr, flush=True)
        these = entries_for(file.name, entries, ours=options.ours)
        result = processes.run(
            file,
            options.devices,
            ours=options.ours,
            limit=options.limit,
            test_limit=options.test_limit,
            patterns=options.patterns,
            left_out=[test for entry in these if not entry.run for test in entry.tests],
        )
        found = expected.compare(result.outcomes, these)
        found.broken = result.broken
        _print(file.name, found)
        good = good and found.as_expected
        report[file.name] = {test: each._asdict() for test, each in result.outcomes.items()}
    if options.report:
        options.report.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
