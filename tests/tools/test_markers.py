"""Markers of the pytest plugin, wrong ones, and tests that would not run in what they wrap."""

import contextlib
import functools
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simgpu._pytest.markers import fail_if_wrong, is_ours
from simgpu._pytest.ranks import DESCRIPTION, fail_if_unused
from simgpu._pytest.repeats import wrap_test, wrapped

WRONG = """
import pytest, torch

@pytest.mark.devices
def test_no_count(devices): pass

@pytest.mark.devices(2, atleast=True)
def test_name(devices): pass

@pytest.mark.schedules("many")
def test_many(): pass

@pytest.mark.every_oom(3)
def test_oom(): pass

@pytest.mark.ranks("2")
def test_ranks(ranks): pass

@pytest.mark.ranks(2)
def test_unused(): pass

@pytest.mark.ranks(2)
@pytest.mark.devices(3)
def test_both(ranks, devices): pass

@pytest.mark.without("--fast", reason="no such option")
def test_option(): pass

@pytest.mark.without("--async")
def test_no_reason(): pass

def test_right(): pass
"""
REPORTED = """
@pytest.mark.devices(): write @pytest.mark.devices(n), n being an int from 1 on
@pytest.mark.devices(2, atleast=True): write @pytest.mark.devices(n)
::test_many: @pytest.mark.schedules('many'): write @pytest.mark.schedules(n), n being an int from 1
::test_oom: @pytest.mark.every_oom(3): write @pytest.mark.every_oom, which takes no arguments
::test_ranks takes the fixture `ranks`, and has to say how many: @pytest.mark.ranks(4), not @pytest
::test_unused: @pytest.mark.ranks(2): the test does not take the fixture `ranks`, *def test_unused(
2 are there already, made by the fixture `ranks`, for @pytest.mark.ranks(2): say @pytest.mark.
::test_option: @pytest.mark.without('--fast', reason='no such option'): write @pytest.mark.without("
::test_no_reason: @pytest.mark.without('--async'): write @pytest.mark.without("--async", reason="why
"""


def test_wrong_marker_is_an_error_of_its_test(pytester):
    pytester.makepyfile(WRONG)
    seen = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--devices", "simgpu")
    seen.assert_outcomes(passed=1, errors=9)
    for reported in REPORTED.strip().splitlines():
        seen.stdout.fnmatch_lines(f"*{reported.replace('[', '[[]')}*")
    seen.stdout.no_fnmatch_line("*Traceback*")
    seen.stdout.no_fnmatch_line("*another exception*")
    seen.stdout.no_fnmatch_line("*unexpected keyword*")


RANKS = """
import pytest, torch, simgpu
from simgpu._core import world

@pytest.mark.ranks(2)
def test_sort(ranks):
    def describe(rank):
        sort = torch.cuda.get_device_properties(rank)
        return sort.name, sort.total_memory, world.current_world().rng

    assert ranks(describe) == [("NVIDIA A100-SXM4-40GB", 1 << 30, "host")] * 2

@pytest.mark.ranks(5)
def test_more(ranks): pass

@pytest.fixture
def world_asked_for(request):
    return request.getfixturevalue("ranks")

@pytest.mark.ranks(3)
def test_asked_for(world_asked_for):
    assert world_asked_for(lambda rank: rank) == [0, 1, 2]
"""


def test_ranks_have_the_devices_of_the_options(pytester):
    pytester.makepyfile(RANKS)
    options = ["--device-model=A100", "--device-memory=1GiB", "--device-rng=host"]
    seen = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--device-count=4", *options)
    seen.assert_outcomes(passed=2, skipped=1)
    seen.stdout.fnmatch_lines("*needs 5 devices, this session has 4*")


def takes_nothing(): ...
def takes_ranks(ranks): ...
def takes_a_fixture_that_takes_ranks(world): ...
def takes_request(request): ...


def item_of(test, count, marked, theirs, fixtures):
    """A test as pytest collects it; `fixtures` are modules, and what a fixture in them takes."""
    names = {takes_ranks: ["ranks"], takes_a_fixture_that_takes_ranks: ["world", "ranks"]}
    declared = [f"{theirs}: those of an army"] if theirs else []
    definitions = {
        f"fixture_{i}": [SimpleNamespace(argnames=takes, func=SimpleNamespace(__module__=module))]
        for i, (module, takes) in enumerate(fixtures)
    }
    return SimpleNamespace(
        name=f"{test.__name__}[0]",
        nodeid=f"test_it.py::{test.__name__}",
        obj=test,
        own_markers=[pytest.mark.ranks(count).mark] if marked == "test" else [],
        fixturenames=names.get(test, []),
        _fixtureinfo=SimpleNamespace(name2fixturedefs=definitions),
        config=SimpleNamespace(getini=lambda name: [*declared, DESCRIPTION]),
        stash=pytest.Stash(),
    )


OF_THE_SUITE = {"test_it": True, "conftest": True, "_pytest.tmpdir": False, "simgpu.x": False}


@given(
    test=st.sampled_from(
        [takes_nothing, takes_ranks, takes_a_fixture_that_takes_ranks, takes_request]
    ),
    count=st.integers(1, 9),
    marked=st.sampled_from(["test", "test", "module", "no"]),
    theirs=st.sampled_from([None, None, "ranks", "ranks(*names)", "ranks_of_an_army", "rank"]),
    fixtures=st.lists(
        st.tuples(
            st.sampled_from(sorted(OF_THE_SUITE)),
            st.sampled_from([(), ("request",), ("tmp_path", "request"), ("requests",)]),
        ),
        max_size=2,
    ),
)
@example(takes_nothing, 2, "test", None, [])
@example(takes_nothing, 2, "test", None, [("conftest", ("request",))])
def test_marker_of_ranks_without_ranks_is_an_error(test, count, marked, theirs, fixtures):
    """Not of a module, nor of a suite with such a marker, nor where `request` may ask for ranks."""
    may_ask = any("request" in takes and OF_THE_SUITE[module] for module, takes in fixtures)
    is_theirs = theirs in ("ranks", "ranks(*names)")
    item = item_of(test, count, marked, theirs, fixtures)
    fail_if_unused(item)
    if marked == "test" and test is takes_nothing and not is_theirs and not may_ask:
        name = test.__name__
        reported = rf"it.py::{name}: @pytest.mark.ranks\({count}\): .*def {name}\(ranks\)"
        with pytest.raises(pytest.fail.Exception, match=reported):
            fail_if_wrong(item)
    else:
        fail_if_wrong(item)


@given(
    name=st.sampled_from(["ranks", "ranks_slow", "rank"]),
    reported=st.sampled_from(["", ":", ": text", "(n): text (more)"]),
    spaces=st.sampled_from(["", " "]),
)
def test_marker_declared_by_the_suite_is_not_ours(name, reported, spaces):
    """As pytest reads its lines: a name, perhaps arguments, a colon and a text."""
    lines = [DESCRIPTION, f"{spaces}{name}{spaces}{reported}"]
    item = SimpleNamespace(config=SimpleNamespace(getini=lambda name: lines))
    assert is_ours(item, DESCRIPTION) == (name != "ranks")


def plain(): ...
async def coroutine(): ...
async def generator(): yield  # fmt: skip


def decorated(test):
    """As by a decorator that knows nothing of `async`: its function only returns the coroutine."""

    @functools.wraps(test)
    def call():
        return test()

    return call


TESTS = {"plain": plain, "coroutine": coroutine, "generator": generator}
DECORATED = {name: decorated(test) for name, test in TESTS.items()}


@given(
    name=st.sampled_from(sorted(TESTS)),
    is_decorated=st.booleans(),
    is_property=st.booleans(),
    what=st.sampled_from(["--races", "--faults", "--schedules", "@pytest.mark.every_oom"]),
)
def test_async_test_is_refused(name, is_decorated, is_property, what):
    """The call of an `async def` ends at once: in the wrapper it would pass, and nothing ran."""
    calls = []

    def around(step):
        calls.append(name)
        step()  # what it returns is lost

    test = (DECORATED if is_decorated else TESTS)[name]
    if is_property:
        test = SimpleNamespace(hypothesis=SimpleNamespace(inner_test=test))
    item = SimpleNamespace(obj=test, stash=pytest.Stash(), nodeid="test_it.py::test_it")
    wrap_test(item, what, around)
    reported = contextlib.nullcontext()
    if name != "plain":
        hint = "without" if what[0] == "-" else "leave @pytest.mark.every_oom out$"
        reported = pytest.raises(pytest.fail.Exception, match=f"{what} cannot run .*{hint}")
    with reported:
        fail_if_wrong(item)
        with mock.patch.object(pytest, "Function", SimpleNamespace), wrapped(item):
            (test.hypothesis.inner_test if is_property else item.obj)()
    assert calls == [name] * (name == "plain" or is_decorated)
