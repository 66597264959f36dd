"""The pytest plugin inside the processes of `python -m simgpu fuzz` (loaded by `-p`).

It keeps the properties alone, gives each its share of the time or of the examples, counts what
they try, and keeps the smallest failing example of each kind as a reproducer. Properties are
reached through the two doors that hypothesis has for plugins: `hypothesis.inner_test` and
settings profiles.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import HypothesisException
from hypothesis.strategies import DataObject

from simgpu._fuzz.reproducers import NotReproducible, Recorder, regression_test
from simgpu._fuzz.tally import Tally
from simgpu._testing import example_log

PLAN = "SIMGPU_FUZZ_PLAN"
PROFILE = "simgpu-fuzz"
SAVE_EVERY = 0.5


def database_of(where: str) -> ExampleDatabase:
    """Return the store of examples that `--database` names: a folder or a redis:// address."""
    if not where.startswith(("redis://", "rediss://")):
        return DirectoryBasedExampleDatabase(where)
    try:
        from hypothesis.extra.redis import RedisExampleDatabase

        redis = importlib.import_module("redis")
    except ImportError as error:
        raise pytest.UsageError(
            f"--database {where} needs the redis package: pip install redis"
        ) from error
    try:
        client = redis.Redis.from_url(where)
        client.ping()
    except (ValueError, redis.RedisError) as error:
        raise pytest.UsageError(
            f"--database {where}: no Redis server answers there ({error}); start one, or name a "
            "folder that the machines share"
        ) from error
    return RedisExampleDatabase(client)


def _parts(error: BaseException) -> Iterator[BaseException]:
    if isinstance(getattr(error, "exceptions", None), tuple):
        for inner in error.exceptions:  # type: ignore[attr-defined]  # of an exception group
            yield from _parts(inner)
    else:
        yield error


def _place(error: BaseException) -> str:
    """Return the line of the project in which an error arose, not of an installed package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and f.filename != __file__]
    frame = (own or list(frames))[-1]
    return f"{os.path.relpath(frame.filename)}:{frame.lineno}"


class Fuzzing:
    """One worker's part of a run."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.tally = Tally()
        self.property = ""
        self.places: list[tuple[int, int]] = []
        self.failing = False
        self.path = Path(plan["folder"]) / f"{os.getpid()}.tally.json"
        self.saved = 0.0
        self.ends: float | None = None

    def hear(self, batch: int | None, devices: int | None, error: float | None) -> None:
        if batch is not None and devices is not None:
            self.places.append((batch, devices))
        if error is not None:
            self.tally.worst[self.property] = max(error, self.tally.worst.get(self.property, 0.0))

    def watched(self, item: pytest.Function, test: Callable[..., Any]) -> Callable[..., None]:
        """Return the property's body, counted."""

        @functools.wraps(test)
        def body(**arguments: Any) -> None:
            seen = {
                name: Recorder(value) if isinstance(value, DataObject) else value
                for name, value in arguments.items()
            }
            start = time.perf_counter()
            try:
                test(**seen)
            except (HypothesisException, pytest.skip.Exception):
                raise
            except (Exception, pytest.fail.Exception) as error:
                self.failing = True
                self.tally.failed.update(set(self.places))
                self._keep(item, test, seen, error)
                raise
            finally:
                self._count(time.perf_counter() - start)
            # After the example and not before it, or its draws would seem to have changed.
            if self.ends is not None and not self.failing and time.monotonic() > self.ends:
                pytest.skip("its share of the time is over")

        return body

    def _count(self, seconds: float) -> None:
        self.tally.examples[self.property] += 1
        self.tally.tried.update(set(self.places))
        batch, devices = self.places[-1] if self.places else (None, None)
        self.places.clear()
        self.tally.add_slow(
            {
                "seconds": round(seconds, 6),
                "property": self.property,
                "batch": batch,
                "devices": devices,
            }
        )
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save()

    def _keep(
        self, item: pytest.Function, test: Any, seen: dict[str, Any], error: BaseException
    ) -> None:
        place = _place(error)
        # The same mistake in several parametrizations of a property is one failure.
        kind = f"{self.property.partition('[')[0]} {type(error).__name__} {place}"
        key = hashlib.sha1(kind.encode()).hexdigest()
        cases = item.callspec.params if hasattr(item, "callspec") else {}
        fixtures = [name for name in seen if name in item.funcargs and name not in cases]
        drawn = {name: value for name, value in seen.items() if name not in fixtures}
        arguments = dict(drawn)
        if "devices" in fixtures:
            arguments["devices"] = seen["devices"]
        marks = [f"@pytest.mark.devices({len(seen['devices'])})\n"] if "devices" in seen else []
        try:
            text: str | None = regression_test(
                test.__module__, test.__name__, arguments, fixtures, key[:6]
            )
        except NotReproducible:
            text = None
        if text is not None and marks and item.get_closest_marker("devices") is not None:
            text = "import pytest\n" + text.replace("\n\n\ndef ", f"\n\n\n{marks[0]}def ", 1)
        # Hypothesis goes on to smaller and smaller examples: the last one it runs is the smallest.
        self.tally.failures[key] = {
            "property": self.property,
            "error": type(error).__name__,
            "message": str(error)[:2000],
            "place": place,
            "combination": self.places[-1] if self.places else None,
            "example": ", ".join(f"{name}={value!r}" for name, value in drawn.items())[:4000],
            "test": text,
            "hypothesis": hypothesis.__version__,
            "blob": None,
        }

    def finish(self, error: BaseException | None) -> None:
        """At the end of a property: give its failures the code that hypothesis repeats them by."""
        for part in _parts(error) if error is not None else ():
            note = "\n".join(getattr(part, "__notes__", []))
            _, found, rest = note.partition("@reproduce_failure(")
            for failure in self.tally.failures.values():
                same = failure["property"] == self.property and failure["place"] == _place(part)
                if same and found:
                    failure["blob"] = rest.partition(", b")[2].partition(")")[0].strip("'\"")
        if error is not None and isinstance(error, Exception) and not self.failing:
            # Not an example but the property itself: a health check, or nothing to draw from.
            self.tally.failures[self.property] = _of_the_property(self.property, error)
        self.save()

    def save(self) -> None:
        self.saved = time.monotonic()
        self.tally.save(self.path)


def _of_the_property(name: str, error: BaseException) -> dict[str, Any]:
    return {
        "property": name,
        "error": type(error).__name__,
        "message": str(error)[:2000],
        "place": _place(error),
        "combination": None,
        "example": "(no example: the property as a whole)",
        "test": "# The property itself fails, whatever its example.\n",
        "hypothesis": hypothesis.__version__,
        "blob": None,
    }


_FUZZING = pytest.StashKey[Fuzzing]()


def _is_property(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and hasattr(item.obj, "hypothesis")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    plan = json.loads(os.environ[PLAN])
    low, high = plan["devices"]
    example_log.limit_devices((low, high))
    try:
        base = settings.get_profile("fuzz")
    except hypothesis.errors.InvalidArgument:  # the suite has none: hypothesis's own
        base = settings.get_profile("default")
    # Of the suite's profile all but what would repeat the same examples or keep none of them. The
    # fixture `devices` is shared by the examples of a test, and a large example is no fault.
    allowed = {
        *base.suppress_health_check,
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    }
    settings.register_profile(
        PROFILE,
        base,
        derandomize=False,
        database=database_of(plan["database"]),
        max_examples=plan["examples"] or 10**9,
        deadline=None,
        print_blob=True,
        suppress_health_check=sorted(allowed, key=lambda check: check.value),
    )
    settings.load_profile(PROFILE)
    config.stash[_FUZZING] = Fuzzing(plan)


def pytest_itemcollected(item: pytest.Item) -> None:
    if _is_property(item) and "blob" in item.config.stash[_FUZZING].plan:
        blob = item.config.stash[_FUZZING].plan["blob"].encode()
        assert isinstance(item, pytest.Function)
        test = getattr(item.obj, "__func__", item.obj)
        hypothesis.reproduce_failure(hypothesis.__version__, blob)(test)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not _is_property(item)]
    items[:] = [item for item in items if _is_property(item)]
    config.hook.pytest_deselected(items=others)
    plan = config.stash[_FUZZING].plan
    plan["properties"] = len(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    fuzzing = item.config.stash[_FUZZING]
    if not isinstance(item, pytest.Function):
        yield
        return
    handle = item.obj.hypothesis
    sound = handle.inner_test
    fuzzing.property, fuzzing.failing = item.nodeid, False
    minutes, jobs = fuzzing.plan["minutes"], fuzzing.plan["jobs"]
    if minutes is not None:
        # Whatever collecting took: a short run of a large suite would otherwise try nothing.
        share = minutes * 60 * jobs / max(1, fuzzing.plan["properties"])
        fuzzing.ends = time.monotonic() + share
    handle.inner_test = fuzzing.watched(item, sound)
    example_log.listen(fuzzing.hear)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        example_log.listen(None)
        handle.inner_test = sound
        fuzzing.finish(error)
