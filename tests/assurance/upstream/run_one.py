"""In a process with simulated devices: run the tests of one file, and write what became of each.

    run_one.py FILE OUTCOMES DONE SECONDS pytorch|ours [PATTERN ...]

OUTCOMES gets a line of JSON when a test begins and one when it ends, so that the process that
started this one knows which test it died in. Tests that match a line of DONE are left out; where
patterns are given, so are tests that match none of them. A test that takes more than SECONDS ends
the process, with the stacks of all threads on stderr. With "ours", what PyTorch's tests take from
torch.nn.parallel is that of `dataparallel`.
"""

from __future__ import annotations

import faulthandler
import fnmatch
import importlib.util
import json
import sys
import traceback
import unittest
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def name_of(test: unittest.TestCase) -> str:
    """`Class.test`: the id without the module, which is the file."""
    return ".".join(test.id().split(".")[-2:])


class Outcomes(unittest.TestResult):
    """Writes every outcome at once; of several of one test, the last line counts."""

    def __init__(self, path: Path, limit: float) -> None:
        super().__init__()
        self._file = path.open("a", encoding="utf-8")
        self._limit = limit

    def _write(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        line = {"test": name_of(test), "outcome": outcome, "text": text}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _failed(self, test: unittest.TestCase, error: Any) -> None:
        self._bad = True
        self._write(test, "failed", "".join(traceback.format_exception(*error)))

    def startTest(self, test: unittest.TestCase) -> None:
        self._bad = False
        self._write(test, "started")
        faulthandler.dump_traceback_later(self._limit, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()

    def addSuccess(self, test: unittest.TestCase) -> None:
        if not self._bad:
            self._write(test, "passed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        if isinstance(test, unittest.TestCase):
            self._failed(test, err)
        else:  # setUpClass or setUpModule, of tests that then have no outcome
            print("".join(traceback.format_exception(*err)), file=sys.stderr)

    addFailure = _failed

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._failed(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        if isinstance(test, unittest.TestCase) and not self._bad:
            self._write(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.addSuccess(test)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._bad = True
        self._write(test, "failed", "passed, although PyTorch's file expects it to fail")


def load(path: Path) -> Any:
    """The module, importable by its name: processes that it starts look for it."""
    sys.path[0] = str(path.parent)
    sys.argv = [str(path)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a file whose name ends in .py has a loader"
    assert spec.loader is not None, "a file whose name ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestCase):
            yield item
        else:
            yield from _flat(item)


def _loaded(module: Any) -> list[unittest.TestCase]:
    # PyTorch's load_tests checks that classes are of its TestCase, by the module that is __main__.
    vars(module).pop("load_tests", None)
    return list(_flat(unittest.TestLoader().loadTestsFromModule(module)))


def _matches(test: unittest.TestCase, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name_of(test), pattern) for pattern in patterns)


def main(arguments: Sequence[str]) -> None:
    """Run what is asked for; the outcomes are in the file, and the exit status is 0."""
    path, outcomes, done, limit, data_parallel, *patterns = arguments
    if data_parallel == "ours":
        from tests.assurance.upstream.ours import use_ours

        use_ours()
    left_out = set(Path(done).read_text(encoding="utf-8").splitlines())
    suite = unittest.TestSuite(
        test
        for test in _loaded(load(Path(path)))
        if not _matches(test, left_out) and (not patterns or _matches(test, patterns))
    )
    suite.run(Outcomes(Path(outcomes), float(limit)))


if __name__ == "__main__":
    main(sys.argv[1:])
