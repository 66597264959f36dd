"""A plugin of pytest for sessions on emulated GPUs.

It gives values to kernels in every test, takes few examples (each call goes through PyTorch twice),
and writes outcomes to the file in EMULATED_CUDA_OUTCOMES as they come: one JSON line for each test.
"""

import json
import os

import pytest

from tests.assurance.emulated_cuda import values

values.switch_on()


def pytest_collection(session):
    from hypothesis import Phase, settings

    settings.register_profile(
        "emulated_cuda",
        parent=settings.get_profile("ci"),
        phases=(Phase.explicit, Phase.generate),
        max_examples=int(os.environ.get("EMULATED_CUDA_EXAMPLES", "10")),
    )
    settings.load_profile("emulated_cuda")


class Outcomes:
    """Writes what becomes of each test; a worker of pytest-xdist leaves that to its controller."""

    def __init__(self, path):
        self.path = path
        self.failed = {}

    def write(self, test, outcome, text=""):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")

    def pytest_runtest_logreport(self, report):
        """One line at the end of a test; failures at once, since a crash would take them along."""
        if report.failed:
            self.failed[report.nodeid] = True
            self.write(report.nodeid, "failed", report.longreprtext)
        elif report.when == "teardown" and report.nodeid not in self.failed:
            self.write(report.nodeid, "passed")
        elif report.skipped and not hasattr(report, "wasxfail"):
            self.failed[report.nodeid] = True
            self.write(report.nodeid, "skipped", str(report.longrepr))


def pytest_configure(config):
    path = os.environ.get("EMULATED_CUDA_OUTCOMES")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("emulated CUDA")
    for name, count in values.not_computed.most_common(40):
        terminalreporter.write_line(f"not computed: {count:6} {name}")
    calls = sum(values.computed.values())
    terminalreporter.write_line(f"computed: {calls} calls of {len(values.computed)} operators")
