"""The last line of a run: how many faults were caught, and by how many examples."""

import statistics

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        (report, dict(report.user_properties))
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call" and "planted fault" in dict(report.user_properties)
    ]
    if not reports:
        return
    killed = sum(report.passed for report, _ in reports)
    examples = [told["examples"] for report, told in reports if report.passed and told["examples"]]
    median = f"{statistics.median(examples):g}" if examples else "-"
    terminalreporter.section("planted faults")
    terminalreporter.line(
        f"killed {killed}/{len(reports)}; median number of examples to the kill: {median} "
        f"({len(examples)} faults caught by properties)"
    )
