"""Which lines each test runs, by coverage.py, with a context for each test."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.assurance.mutants.child import Reporter, run_items
from tests.assurance.mutants.mutants import ROOT, files_of
from tests.assurance.mutants.planting import module_name


@contextlib.contextmanager
def _in_autograd_threads() -> Iterator[None]:
    """Trace backward passes too: their threads are made by C++, so `threading` tells none of it."""
    backward = torch.autograd.function.BackwardCFunction
    stock: Callable[..., Any] = backward.apply

    def apply(self: Any, *grads: Any) -> Any:
        trace = threading.gettrace()
        if trace is not None and sys.gettrace() is None:
            sys.settrace(trace)
        return stock(self, *grads)

    backward.apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        backward.apply = stock  # type: ignore[method-assign]


class _Contexts(Reporter):
    def __init__(self, channel: int, coverage: Any) -> None:
        super().__init__(channel, {})
        self.coverage = coverage
        self.costs: dict[str, float] = {}
        self.failed: set[str] = set()
        self.began = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell(test=nodeid, allowed=60.0)
        self.coverage.switch_context(nodeid)
        self.began = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.costs[nodeid] = round(time.process_time() - self.began, 3)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def _tracer(folders: Sequence[str]) -> Any:
    import coverage

    sources = [str(ROOT / folder) for folder in folders]
    tracer = coverage.Coverage(data_file=None, config_file=False, source=sources)
    quiet = ["no-data-collected", "module-not-measured", "module-not-imported", "trace-changed"]
    tracer.set_option("run:disable_warnings", quiet)
    return tracer


def _bits(data: Any) -> Iterator[tuple[str, str, int]]:
    """File, test, and the lines of the file that the test ran, line n as bit n."""
    for file in data.measured_files():
        bits: dict[str, int] = {}
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                bits[context] = bits.get(context, 0) | 1 << line
        for test, lines in bits.items():
            yield os.path.relpath(file, ROOT), test, lines


def measure(items: Sequence[pytest.Item], folders: Sequence[str], channel: int) -> dict[str, Any]:
    """Run the tests; for each that passes, what it cost and its lines as bits, by file."""
    tracer = _tracer(folders)
    reporter = _Contexts(channel, tracer)
    items[0].config.pluginmanager.register(reporter)
    tracer.start()
    with _in_autograd_threads():
        run_items(items)
    tracer.stop()
    found: dict[str, Any] = {
        test: {"cost": cost, "lines": {}}
        for test, cost in reporter.costs.items()
        if test not in reporter.failed
    }
    for file, test, lines in _bits(tracer.get_data()):
        if test in found:
            found[test]["lines"][file] = hex(lines)
    return {"tests": found, "failed": sorted(reporter.failed)}


def imported(folders: Sequence[str]) -> dict[str, str]:
    """The lines that run when the modules of the folders are imported, as bits by file."""
    tracer = _tracer(folders)
    tracer.start()
    torch._import_device_backends()  # type: ignore[no-untyped-call]
    for path in files_of(folders):
        with contextlib.suppress(Exception):  # some can only be imported by those that need them
            importlib.import_module(module_name(path))
    tracer.stop()
    return {file: hex(lines) for file, _, lines in _bits(tracer.get_data())}
