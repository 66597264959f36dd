"""The marker `ranks` and what its fixture gives: a world of torch.distributed in threads."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol, TypeVar, cast

import pytest

from simgpu._pytest import markers
from simgpu._pytest.markers import call_of, fail_item, is_ours
from simgpu._pytest.options import read_options
from simgpu._pytest.pools import explain_devices, simulated_pool
from simgpu._util.naming import plural

DESCRIPTION = (
    "ranks(count): the fixture `ranks` runs a function on `count` ranks of torch.distributed, "
    "which are threads of this process with one simulated device each."
)

T = TypeVar("T")


class Run(Protocol):
    """The type of the fixture `ranks`: `simgpu.ranks` with the number of ranks of the marker."""

    def __call__(
        self,
        function: Callable[[int], T],
        *,
        backend: str | None = "nccl",
        schedule: int | str | None = None,
    ) -> list[T]: ...


@contextlib.contextmanager
def lend_ranks(request: pytest.FixtureRequest) -> Iterator[Run]:
    """What the marker of a test asks for; CUDA devices, where there are none.

    The session's options choose their kind; where there are fewer, the test is skipped.
    """
    node = request.node
    count = _count(node)
    options = read_options(node.config)
    pool = simulated_pool(options)
    if (options.count is not None or options.as_cuda) and count > pool.count:
        needs = plural(count, "device")
        markers.skip(request, f"needs {needs}, this session has {pool.count}")
    import simgpu
    from simgpu._core import world

    with contextlib.ExitStack() as ends:
        if not world.device_count():
            ends.enter_context(simgpu.as_cuda(count, **pool.sort(count)))
            explain_devices(
                "pytest's fixture `ranks` made them: use these, or do without it",
                f"the fixture `ranks`, for @pytest.mark.ranks({count})",
            )
        yield cast(Run, functools.partial(simgpu.ranks, count))


def fail_if_unused(item: pytest.Item) -> None:
    """Fail a test that gives a number of ranks and takes no fixture that runs them.

    The marker of a class or a module applies to those of its tests that take the fixture.
    """
    marker = next((each for each in item.own_markers if each.name == "ranks"), None)
    names: Collection[str] = getattr(item, "fixturenames", ())
    if marker is None or "ranks" in names or not is_ours(item, DESCRIPTION):
        return
    if _may_ask_while_it_runs(item):
        return
    fail_item(
        item,
        marker,
        f"the test does not take the fixture `ranks`, so that nothing runs on ranks: write "
        f"def {item.name.partition('[')[0]}(ranks), and ranks(fn) in it, or simgpu.ranks(n, fn) "
        "without the marker",
    )


def _may_ask_while_it_runs(item: pytest.Item) -> bool:
    """Whether a test, or a fixture of its suite that it has, takes `request`."""
    test: Any = getattr(item, "obj", None)
    if callable(test) and "request" in inspect.signature(test).parameters:
        return True
    info: Any = getattr(item, "_fixtureinfo", None)
    fixtures = () if info is None else itertools.chain(*info.name2fixturedefs.values())
    return any("request" in each.argnames and not _is_known(each) for each in fixtures)


def _is_known(fixture: Any) -> bool:
    """Whether a fixture is pytest's or ours: these take `request`, and ask for no ranks."""
    return str(fixture.func.__module__).partition(".")[0] in ("_pytest", "simgpu")


def _count(node: pytest.Item) -> int:
    """How many ranks the marker of a test asks for."""
    marker = node.get_closest_marker("ranks")
    args = () if marker is None or marker.kwargs else marker.args
    if len(args) != 1 or type(args[0]) is not int or args[0] < 1:
        found = "" if marker is None else f", not {call_of(marker)}"
        pytest.fail(
            f"{node.nodeid} takes the fixture `ranks`, and has to say how many: "
            f"@pytest.mark.ranks(4){found}",
            pytrace=False,
        )
    return int(args[0])
