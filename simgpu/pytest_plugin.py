"""The pytest plugin: the fixtures of devices, on real GPUs or on simulated ones.

Here are the hooks and the fixtures that pytest looks up by name; what they do is in the files of
`simgpu/_pytest`. The plugin is loaded in every pytest session of an environment that has simgpu
installed, so it imports torch only when a test (or an option naming real GPUs) needs it.

May import: `_pytest`, `_util`, `torch`, `pytest`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from simgpu._pytest import markers, repeats
from simgpu._pytest.header import add_hint, cuda_lines, header_line, note_want_of_cuda
from simgpu._pytest.options import add_options, check, read_options
from simgpu._pytest.pools import Scope, needs_no_torch, session_pool
from simgpu._pytest.ranks import DESCRIPTION as RANKS_DESCRIPTION
from simgpu._pytest.ranks import Run as Run
from simgpu._pytest.ranks import fail_if_unused, lend_ranks
from simgpu._util.naming import plural

if TYPE_CHECKING:
    import torch


# The hooks of --as-cuda, for suites that name CUDA and no fixture of ours; and a clear error.
# Those that others import come first: pytest warns of a plugin that was imported before.
pytest_plugins = [
    "simgpu._pytest.options",
    "simgpu._pytest.as_cuda",
    "simgpu._pytest.tracebacks",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        markers.DEVICES_MARKER,
        repeats.EVERY_OOM_MARKER,
        repeats.SCHEDULES_MARKER,
        RANKS_DESCRIPTION,
        markers.WITHOUT_MARKER,
    ):
        config.addinivalue_line("markers", marker)
    options = read_options(config)
    check(options)
    if options.asynchronous:
        repeats.begin_asynchronous(config, options.async_seed)
    if needs_no_torch(options):
        session_pool(config)


def pytest_itemcollected(item: pytest.Item) -> None:
    markers.give_devices_if_marked(item)
    fail_if_unused(item)
    markers.read_markers(item)
    repeats.wrap_by_options(item, markers.options_for(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with repeats.asynchronous(item), repeats.wrapped(item):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    markers.fail_if_wrong(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None:
        add_hint(item, call.excinfo.value, report)
        note_want_of_cuda(item, call.excinfo.value, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    call = getattr(report, "call", None)
    if call is not None and call.excinfo is not None:
        note_want_of_cuda(collector, call.excinfo.value, report)
    return report


def pytest_report_header(config: pytest.Config) -> str:
    return header_line(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests had too few devices or no CUDA, or left an option out."""
    stats = terminalreporter.stats
    ran = [report for how in ("passed", "failed") for report in stats.get(how, [])]
    skipped = stats.get("skipped", [])
    lines = [*markers.skip_lines(skipped), *markers.left_out_lines(ran)]
    reports = [*skipped, *stats.get("failed", []), *stats.get("error", [])]
    lines += cuda_lines(reports, read_options(terminalreporter.config))
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture
def devices(request: pytest.FixtureRequest) -> Iterator[list[torch.device]]:
    """The devices of this test, as a list of ``torch.device``.

    As many as ``--device-count`` says, or exactly `n` under ``@pytest.mark.devices(n)``, or no
    fewer than `n` under ``@pytest.mark.devices(n, at_least=True)``. Seeds,
    current device, memory counters and trace start afresh for each test. The marker by itself gives
    a test its devices too, which it then names itself.

    Under hypothesis the list is made once per test and shared by its examples; make each example
    draw its own subset or order of it. Hypothesis warns about any fixture that is shared so, and
    the warning has to be silenced: ``@settings(suppress_health_check=
    [HealthCheck.function_scoped_fixture])``, once in a profile. What an example must not do is
    rely on the state that a former example left on a device.
    """
    with _lend(request) as lent:
        yield lent


@pytest.fixture(scope="module")
def module_devices(request: pytest.FixtureRequest) -> Iterator[list[torch.device]]:
    """Devices that all tests of a module share, as for a model that is built once.

    As many as `devices` gives, or what a marker of the module (``pytestmark``) asks for. Tests of
    the module that take `devices` get the first of these: seeds, current device and peak memory
    counters start afresh for each of them, memory in use stays. A test that takes only
    `module_devices` finds everything as the test before it left it.
    """
    with _lend(request, "module") as lent:
        yield lent


@pytest.fixture(scope="session")
def session_devices(request: pytest.FixtureRequest) -> Iterator[list[torch.device]]:
    """Devices that all tests of the session share, from the first test that asks for them on.

    As `module_devices`, which are the first of these from then on. Under pytest-xdist each worker
    has a session of its own.
    """
    with _lend(request, "session") as lent:
        yield lent


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a function on each rank of a world: ``ranks(lambda rank: ...)``, a list of results.

    As many as ``@pytest.mark.ranks(n)`` says, in threads of this process, as `simgpu.ranks` has
    it; with its arguments ``backend`` and ``schedule``. There are `n` simulated devices by the name
    of CUDA, of the sort that the options of the session say, unless the test has others already.

    Annotate it as `simgpu.pytest_plugin.Run`: mypy then knows the type of the list.
    """
    with lend_ranks(request) as run:
        yield run


@pytest.fixture(name=markers.MARKED_DEVICES)
def _marked_devices(request: pytest.FixtureRequest) -> Iterator[None]:
    """The devices of a test that has the marker and no fixture of ours."""
    with _lend(request):
        yield


def _lend(
    request: pytest.FixtureRequest, scope: Scope = "function"
) -> contextlib.AbstractContextManager[list[torch.device]]:
    """Give a test what its marker asks for, or skip it."""
    pool = session_pool(request.config)
    try:
        wanted = markers.wanted_by(request.node) or markers.Wanted(pool.count)
    except ValueError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    if wanted.count > pool.count:
        needs = plural(wanted.count, "device")
        markers.skip(request, f"needs {needs}, this session has {pool.count}")
    if wanted.distinct and not pool.distinct:
        needs = f"{wanted.count} distinct devices"
        markers.skip(request, f"needs {needs}, this session has {pool.describe()}")
    return pool.lend(pool.count if wanted.at_least else wanted.count, scope)
