"""Threads of a schedule that wait for each other, or go on for ever, are told with their lines."""

import _thread
import contextlib
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu.errors import DeadlockError, LivelockError, UncontrolledWaitError
from tests.support.threads import in_threads


def run(program):
    with simgpu.schedule():
        program()


def cross(kind, count):
    """Each thread takes its own lock, and then the next one's."""
    locks = [getattr(threading, kind)() for _ in range(count)]

    def take(i):
        with locks[i]:
            time.sleep(1)
            with locks[(i + 1) % len(locks)]:
                pass

    threads = [threading.Thread(target=take, args=(i,)) for i in range(len(locks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@given(count=st.integers(2, 4), kind=st.sampled_from(["Lock", "RLock"]))
def test_a_deadlock_names_every_thread_and_its_line(count, kind):
    with pytest.raises(DeadlockError) as raised:
        run(lambda: cross(kind, count))
    first, main, *others = str(raised.value).splitlines()
    assert first.startswith("deadlock: no thread can go on")
    assert "waits for the end of thread 1, at " in main
    assert main.endswith("thread.join()")
    assert len(others) == count
    for number, line in enumerate(others, 1):
        assert f"thread {number} (Thread-{number} (take)) waits for a lock that thread " in line
        assert "test_deadlocks.py:" in line
        assert line.endswith("with locks[(i + 1) % len(locks)]:")


@given(size=st.integers(1, 300), by=st.sampled_from(["a lock", "a thread", "an interrupt"]))
def test_a_schedule_that_has_failed_keeps_no_memory(size, by):
    """Nor does it wait for the garbage collector, once the program has dropped the error."""

    def wait():
        x = torch.ones(size, device="simgpu:0")
        lock = threading.Lock()
        with lock:
            thread = threading.Thread(target=lambda: lock.acquire(timeout=-x.numel() // x.numel()))
            thread.start()
            if by == "an interrupt":
                threading.Thread(target=_thread.interrupt_main).start()
            (lock.acquire if by == "a lock" else thread.join)()

    with simgpu.devices(1):
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(DeadlockError, KeyboardInterrupt):
                run(wait)
            assert torch.simgpu.memory_allocated(0) == 0
        finally:
            gc.enable()


WAITS = {
    "event": lambda: threading.Event().wait(),
    "barrier": lambda: threading.Barrier(2).wait(),
    "semaphore": lambda: threading.Semaphore(0).acquire(),
    "lock": lambda: [lock := threading.Lock(), lock.acquire(), lock.acquire()],
    "pool": lambda: ThreadPoolExecutor(1).submit(threading.Event().wait).result(),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_single_waiting_thread_is_a_deadlock(name):
    """Nobody can catch the error in the block and go on as if nothing had been."""
    before = threading.active_count()

    def hide():
        with contextlib.suppress(Exception):
            WAITS[name]()

    with pytest.raises(DeadlockError, match=r"thread 0 .*waits.*, at .*test_deadlocks\.py:\d+: "):
        run(hide)
    assert threading.active_count() == before


@given(name=st.sampled_from(sorted(WAITS)), kind=st.sampled_from([None, KeyError, OSError]))
def test_an_error_raised_for_a_deadlock_is_its_cause(name, kind):
    """What the program raises instead is its cause; by itself it has none."""

    def answer():
        try:
            WAITS[name]()
        except DeadlockError:
            if kind is None:
                raise
            raise kind("of the program") from None

    with pytest.raises(DeadlockError) as found:
        run(answer)
    cause = found.value.__cause__
    assert cause is None if kind is None else type(cause) is kind


@pytest.mark.parametrize("seconds", [0, 0.1])
def test_threads_that_ask_again_and_again_are_a_livelock(seconds, monkeypatch):
    monkeypatch.setattr("simgpu._explore.schedules.scheduler.MAX_IDLE", 3000)

    def ask():
        while True:
            time.sleep(seconds)

    def program():
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    with pytest.raises(LivelockError, match=r"3001 of them without .*\n.*thread 1"):
        run(program)


def test_a_loop_that_waits_lets_others_go_on():
    with simgpu.schedule():
        done, lock = [], threading.Lock()

        def ask():
            while not done:
                with lock:
                    pass

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        done.append(True)
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.1), (1, 60), (2, 0.002)])
def test_time_passes_while_threads_work_until_stopped(simulated, workers, seconds, monkeypatch):
    """Each launch is progress, so that only their own steps tell that others want to go on."""
    monkeypatch.setattr("simgpu._explore.schedules.scheduler.QUANTUM", 30)
    monkeypatch.setattr("simgpu._explore.schedules.scheduler.TURNS", 150)
    with simgpu.schedule(max_steps=5000):
        done = []

        def work():
            x = torch.zeros(1, device=simulated[0])
            while not done:
                x += 1

        threads = [threading.Thread(target=work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        done.append(True)
        for thread in threads:
            thread.join()


def start_and_wait(thread):
    thread.start()
    threading.Event().wait()


@given(seed=st.integers(0, 20))
def test_an_interrupt_reaches_the_thread_that_entered_wherever_it_waits(seed):
    with simgpu.schedule(seed, "random"):
        thread = threading.Thread(target=_thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            start_and_wait(thread)
        thread.join()


OLDER = threading.Lock()


def share_older():
    def take():
        with OLDER:
            time.sleep(1)

    in_threads(take, take)


def test_lock_older_than_the_schedule_joins_or_is_reported(monkeypatch):
    monkeypatch.setattr("simgpu._explore.schedules.stalls.EVERY", 0.02)
    before = threading.active_count()
    with pytest.raises(
        UncontrolledWaitError, match=r"thread 2 .* before the schedule .*num_workers=0"
    ):
        run(share_older)
    assert threading.active_count() == before
    assert simgpu.schedules(share_older, 10).problems == []
    assert isinstance(OLDER, type(_thread.allocate_lock()))
    assert not OLDER.locked()
