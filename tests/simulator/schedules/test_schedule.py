"""`simgpu.schedule`: equal seeds give equal runs, and so do tokens.

Time goes on in it, and `simgpu.schedules` finds what is wrong in some orders.
"""

import contextlib
import gc
import queue
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import clock
from simgpu.errors import DeadlockError, LivelockError, ScheduleDivergedError, ScheduleError
from tests.support.ordering_faults import (
    ALWAYS_WRONG,
    PROGRAMS,
    lock_cycle,
    lost_update,
    made_twice,
    outcome,
)
from tests.support.threads import in_threads

OPERATIONS = ("lock", "rlock", "sleep", "put", "wait", "set", "launch", "copy", "pool")


def programs(threads=3, length=3):
    """For each thread the names of what it does, one after the other."""
    operations = st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=length)
    return st.lists(operations, min_size=2, max_size=threads)


class Program:
    """Runs one such program; `run` returns what was noted, in its order."""

    def __init__(self, threads, device):
        self.threads, self.device = threads, device

    def run(self):
        self.noted, self.lock, self.rlock = [], threading.Lock(), threading.RLock()
        self.queue, self.event = queue.Queue(), threading.Event()
        self.tensor = torch.zeros(2, device=self.device)
        running = [
            threading.Thread(target=self._thread, args=(number, operations))
            for number, operations in enumerate(self.threads)
        ]
        for thread in running:
            thread.start()
        for _ in range(sum(operations.count("put") for operations in self.threads)):
            self.noted.append(self.queue.get())
        for thread in running:
            thread.join()
        del self.tensor  # or its memory would still be taken in the next run
        return self.noted, [thread.name for thread in running], time.monotonic()

    def _thread(self, number, operations):
        for operation in operations:
            self.noted.append((number, operation, getattr(self, f"_{operation}")(number)))

    def _lock(self, number):
        with self.lock:
            return self._within(number, "lock")

    def _rlock(self, number):
        with self.rlock, self.rlock:
            return self._within(number, "rlock")

    def _within(self, number, lock):
        for word in ("in", "out"):
            self.noted.append((number, lock, word))
            self.tensor + 1  # where another thread may go on

    def _sleep(self, number):
        time.sleep(0.1 * (number + 1))
        return time.perf_counter()

    def _put(self, number):
        self.queue.put((number, "item"))

    def _wait(self, number):
        return self.event.wait(0.5)

    def _set(self, number):
        self.event.set()

    def _launch(self, number):
        self.tensor.add_(1)
        return float(self.tensor.sum())

    def _copy(self, number):
        return (self.tensor.cpu() + number).tolist()

    def _pool(self, number):
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(self._launch, number) for _ in range(2)]
            return [future.result() for future in as_completed(futures)]


STRATEGIES = ("deviate", "random", "pct")


def run(program, **how):
    with simgpu.schedule(**how) as schedule:
        result = program.run()
    return result, schedule


@given(threads=programs(), seed=st.integers(0, 40), strategy=st.sampled_from(STRATEGIES))
def test_equal_seeds_give_equal_runs_and_so_does_the_token(simulated, threads, seed, strategy):
    program = Program(threads, simulated[0])
    result, schedule = run(program, seed=seed, strategy=strategy)
    again, other = run(program, seed=seed, strategy=strategy)
    assert again == result
    assert other.digest() == schedule.digest()
    assert all(len(choice.options) > 1 for choice in schedule.trace)
    repeated, replayed = run(program, replay=schedule.token)
    assert repeated == result
    assert replayed.digest() == schedule.digest()
    assert replayed.token == schedule.token


@given(threads=programs(), seed=st.integers(0, 40), strategy=st.sampled_from(STRATEGIES))
def test_one_thread_at_a_time_has_a_lock(simulated, threads, seed, strategy):
    (noted, *_), _ = run(Program(threads, simulated[0]), seed=seed, strategy=strategy)
    for lock in ("lock", "rlock"):
        inside = [(note[0], note[2]) for note in noted if note[1] == lock and note[2]]
        for (first, begins), (then, ends) in zip(inside[::2], inside[1::2], strict=True):
            assert (first, begins, ends) == (then, "in", "out")


def test_seeds_of_deviate_are_the_order_by_default_and_each_deviation_from_it(simulated):
    program = Program([["launch", "launch"], ["launch"]], simulated[0])
    result, default = run(program)
    assert not any(choice.rank for choice in default.trace)
    deviations = sum(len(choice.options) - 1 for choice in default.trace)
    found = set()
    for seed in range(1, deviations + 1):
        schedule = run(program, seed=seed)[1]
        ranks = [(at, choice.rank) for at, choice in enumerate(schedule.trace) if choice.rank]
        assert len(ranks) == 1
        found.add(ranks[0])
    assert len(found) == deviations
    assert run(program, seed=deviations + 1)[0] == result


@contextlib.contextmanager
def no_thread_fails():
    """Whatever ends the threads of a schedule, none of them raises an error of its own."""
    failed = []
    with mock.patch.object(threading, "excepthook", failed.append):
        yield
    assert failed == []


@given(threads=programs(), seed=st.integers(0, 40), change=st.sampled_from(["more", "less"]))
def test_a_replay_of_another_program_names_where_it_diverged(simulated, threads, seed, change):
    program = Program(threads, simulated[0])
    _, schedule = run(program, seed=seed, strategy="random")
    other = Program([*threads, ["launch"]] if change == "more" else threads[1:], simulated[0])
    if not schedule.trace:
        return
    hint = r"(?s)diverged .*choice.* look for a new one by simgpu\.schedules\(fn\)"
    diverges = pytest.raises(ScheduleDivergedError, match=hint)
    with no_thread_fails(), diverges:
        run(other, replay=schedule.token)


def test_an_ended_thread_releases_no_lock_that_it_waits_for(simulated):
    """A condition's, which it takes again when its wait is over; found by fuzzing."""
    threads = [["wait"], ["lock"]]
    other = Program([*threads, ["launch"]], simulated[0])
    with no_thread_fails():
        _, schedule = run(Program(threads, simulated[0]), seed=3, strategy="random")
        with pytest.raises(ScheduleDivergedError):
            run(other, replay=schedule.token)


@pytest.mark.skipif(not hasattr(Exception, "add_note"), reason="errors have notes from 3.11 on")
@given(error=st.sampled_from([AssertionError, KeyError, RuntimeError]), seed=st.integers(0, 9))
def test_every_error_notes_how_to_repeat_its_schedule(error, seed):
    def fail():
        threading.Thread(target=time.sleep, args=(1,)).start()
        raise error

    with pytest.raises(error) as raised, simgpu.schedule(seed, "random") as schedule:
        fail()
    (note,) = raised.value.__notes__
    assert f"simgpu.schedule(replay={schedule.token!r})" in note


@pytest.mark.parametrize(
    "replay", ["", "S1", "S1f", "S1x", "S1fAQ", "schedule", "S1fé", "S1F//", 5, b"S1fAAA"]
)
def test_invalid_token_is_refused(replay):
    with pytest.raises(ValueError, match="is no token"), simgpu.schedule(replay=replay):
        pass


@pytest.mark.parametrize(
    "how",
    [
        {"seed": -1}, {"seed": 2**64}, {"seed": True}, {"seed": 1.0}, {"strategy": "dfs"},
        {"max_steps": 0}, {"max_steps": "9"}, {"max_steps": True},
    ],
)  # fmt: skip
def test_invalid_schedule_is_refused(how):
    with pytest.raises(ValueError, match=next(iter(how))), simgpu.schedule(**how):
        pass


def test_there_is_one_schedule_at_a_time():
    outer, inner = simgpu.schedule(), simgpu.schedule()
    with pytest.raises(ScheduleError, match="cannot be nested"), outer, inner:
        pass


@contextlib.contextmanager
def ctrl_c():
    """Python's own handler, which a process in the background may lack."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@ctrl_c()
def test_waiting_takes_no_time_and_everything_is_put_back():
    def now():
        replaced = threading.Lock, threading.Thread.start, time.sleep, time.monotonic
        return replaced, gc.isenabled(), signal.getsignal(signal.SIGINT)

    stock = now()
    began = time.monotonic()
    with simgpu.schedule():
        begin = time.monotonic(), time.perf_counter_ns(), time.time()
        time.sleep(3600)
        end = time.monotonic(), time.perf_counter_ns(), time.time()
    assert time.monotonic() - began < 3600
    passed = [later - former for former, later in zip(begin, end, strict=True)]
    assert [round(passed[0]), passed[1] // 10**9, round(passed[2])] == [3600] * 3
    assert now() == stock


def test_kernels_have_the_time_of_the_schedule(simulated):
    def times():
        with simgpu.schedule(), simgpu.trace() as trace:
            x = torch.ones(2, device=simulated[0])
            time.sleep(5)
            x.neg()
        return [(record.begin, record.end) for record in trace]

    (first, _), *_, (last, _) = times()
    assert 5 < last - first < 6
    assert times() == times()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_time_out_comes_in_some_orders(strategy):
    def come(seed):
        with simgpu.schedule(seed, strategy):
            event = threading.Event()
            threading.Thread(target=event.set).start()
            return event.wait(5)

    assert {come(seed) for seed in range(30)} == {True, False}


def test_threads_that_outlive_a_schedule_are_ended():
    ended = []

    def serve():
        try:
            threading.Event().wait()
        finally:
            ended.append(threading.current_thread().name)

    before = threading.active_count()
    with simgpu.schedule() as schedule:
        for _ in range(2):
            threading.Thread(target=serve, daemon=True).start()  # a failure lets the process end
    assert ended == ["Thread-1 (serve)", "Thread-2 (serve)"]
    assert threading.active_count() == before
    assert [line.split(", at ")[1].split(": ")[1] for line in schedule.left_behind] == [
        "threading.Event().wait()"
    ] * 2


def test_a_thread_that_does_not_end_stops_for_good():
    caught = []

    def stubborn():
        for _ in range(1000):
            try:
                time.sleep(0)
            except BaseException as error:
                caught.append(type(error).__name__)

    def start_and_wait():
        threading.Thread(target=stubborn, daemon=True).start()
        threading.Event().wait()

    with pytest.raises(LivelockError), simgpu.schedule(max_steps=50):
        start_and_wait()
    assert 0 < len(caught) < 200


def test_existing_locks_join_schedule():
    condition, event, semaphore = threading.Condition(), threading.Event(), threading.Semaphore(0)

    def serve():
        event.wait()
        with condition:
            condition.notify()
        semaphore.release()

    for seed in range(20):
        event.clear()
        with simgpu.schedule(seed, "random"):
            thread = threading.Thread(target=serve)
            with condition:
                thread.start()
                event.set()
                condition.wait()
            semaphore.acquire()
            thread.join()


def test_threads_without_devices_have_schedules_too():
    def last(seed):
        order = []
        with simgpu.schedule(seed, "random"):
            in_threads(*(partial(order.append, number) for number in range(3)))
        return tuple(order)

    assert len({last(seed) for seed in range(200)}) == 6


def test_hypothesis_runs_within_a_schedule(simulated):
    with simgpu.schedule(3):

        @given(st.integers())
        def holds(number):
            assert float(torch.full((), number % 7, device=simulated[0])) == number % 7

        holds()


def locked():
    lock = threading.Lock()
    lock.acquire()
    return lock


def empty(kind, seconds):
    try:
        kind().get(timeout=seconds)
    except queue.Empty:
        return
    raise AssertionError("nobody has put anything there")


# Waits for what never comes: each takes the time that it was given.
WAITS = {
    "sleep": lambda seconds: time.sleep(seconds),  # by its name of then, which is the schedule's
    "event": lambda seconds: threading.Event().wait(seconds),
    "join": lambda seconds: threading.main_thread().join(seconds),
    "lock": lambda seconds: locked().acquire(timeout=seconds),
    "semaphore": lambda seconds: threading.Semaphore(0).acquire(timeout=seconds),
    "queue": lambda seconds: empty(queue.Queue, seconds),
    "simple queue": lambda seconds: empty(queue.SimpleQueue, seconds),
}


@given(
    threads=st.lists(
        st.lists(st.tuples(st.sampled_from(sorted(WAITS)), st.integers(1, 30)), max_size=3),
        min_size=2,
        max_size=3,
    ),
    seed=st.integers(0, 40),
    strategy=st.sampled_from(STRATEGIES),
)
def test_time_goes_on_and_no_wait_is_shorter_than_it_said(threads, seed, strategy):
    seen, short = [], []

    def work(waits):
        for name, seconds in waits:
            seen.append(time.monotonic())
            begun = seen[-1]
            WAITS[name](seconds)
            seen.append(time.monotonic())
            if seen[-1] - begun < seconds:
                short.append((name, seconds, seen[-1] - begun))

    with simgpu.schedule(seed, strategy):
        in_threads(*(partial(work, waits) for waits in threads))
    assert len(seen) == 2 * sum(map(len, threads))
    assert seen == sorted(seen)
    assert short == []


@given(moments=st.lists(st.integers(-30, 30), min_size=1, max_size=4))
def test_devices_wait_for_moments_of_the_schedule(moments):
    """As a slow device does: until then, and not for so long; what is over takes no time."""
    with simgpu.schedule():
        for ahead in moments:
            begun = time.monotonic()
            clock.current.wait_until(clock.current.now() + ahead)
            assert round(time.monotonic() - begun) == max(ahead, 0)


@given(seed=st.integers(0, 2**32), strategy=st.sampled_from(STRATEGIES))
def test_polling_with_a_timeout_lets_others_work(seed, strategy):
    """Whatever its priority: time-outs that come early each time leave no turn to others."""
    asked = []

    def ask():
        while not event.wait(0.1):
            asked.append(True)

    with simgpu.schedule(seed, strategy):
        event = threading.Event()
        thread = threading.Thread(target=ask)
        thread.start()
        event.set()
        thread.join()
    assert len(asked) < 20


@pytest.mark.parametrize("program", PROGRAMS + ALWAYS_WRONG, ids=lambda program: program.__name__)
def test_order_dependent_failure_is_found_and_repeated(simulated, program):
    step = partial(program, simulated)
    report = simgpu.schedules(step, 150)
    assert len(report.problems) == 1
    (token,) = report.tokens
    assert len(token) < 100
    assert token in str(report)
    failed = outcome(step, replay=token)
    assert (failed != outcome(step)) == (program in PROGRAMS)
    assert [outcome(step, replay=token) for _ in range(5)] == [failed] * 5


@given(strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 3), n=st.integers(1, 30))
def test_program_right_in_every_order_has_no_problems(simulated, strategy, seed, n):
    total, lock = torch.zeros(1, device=simulated[0]), threading.Lock()

    def add():
        with lock:
            total.copy_(total.clone() + 1)

    report = simgpu.schedules(
        lambda: in_threads(add, add), n, strategy=strategy, seed=seed, state=[total]
    )
    assert report.problems == []
    assert report.count == n or strategy == "deviate"
    assert f"{report.count} schedules tried" in str(report)
    assert float(total) == 0  # all of it is put back


def test_every_deviation_is_tried_once(simulated):
    report = simgpu.schedules(partial(lost_update, simulated), 10**4, compare=False)
    tokens = [run.token for run in report.runs]
    assert len(tokens) == len(set(tokens))
    first = report.runs[0].trace
    singles = sum(len(choice.options) - 1 for choice in first)
    ones = [run for run in report.runs if sum(choice.rank > 0 for choice in run.trace) == 1]
    assert len(ones) == singles


@pytest.mark.parametrize("strategy", ["random", "pct"])
@pytest.mark.parametrize("program", [lost_update, lock_cycle, made_twice])
def test_a_failed_schedule_is_made_as_short_as_can_be(simulated, strategy, program):
    """One deviation is enough for each of these, whatever chance has found."""
    for seed in range(4):
        report = simgpu.schedules(partial(program, simulated), 150, strategy=strategy, seed=seed)
        assert isinstance(report.runs[-1].error, DeadlockError) == (program is lock_cycle)
        assert report.problems
        assert sum(choice.rank > 0 for choice in report.runs[-1].trace) == 1


@pytest.mark.parametrize("how", [{"n": 0}, {"n": True}, {"strategy": "dfs"}, {"seed": -3}])
def test_invalid_schedules_are_refused(how):
    with pytest.raises(ValueError, match=next(iter(how))):
        simgpu.schedules(lambda: None, **how)
