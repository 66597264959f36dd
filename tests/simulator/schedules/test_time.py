"""Time in a schedule: it goes on, no wait is shorter than asked, and no time-out hides others."""

import queue
import threading
import time
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import clock
from tests.support.threads import in_threads

STRATEGIES = st.sampled_from(("deviate", "random", "pct"))


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
    strategy=STRATEGIES,
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


@given(seed=st.integers(0, 2**32), strategy=STRATEGIES)
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
