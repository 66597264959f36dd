"""What a test is wrapped in: a test that would not run in it says so, and does not pass."""

import contextlib
import functools
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu._pytest.markers import fail_if_wrong
from simgpu._pytest.repeats import wrap_test, wrapped


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
