"""The threads of a schedule share one CPU, and nothing else does, nor they after it."""

import _thread
import contextlib
import os
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import simgpu
from simgpu._explore.schedules import one_cpu

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or not Path("/proc/thread-self").exists(),
    reason="the system does not say which CPUs a thread may use",
)
HOST_LOCK = _thread.allocate_lock


def of_the_system(text=None):
    """The CPUs and the policy of the calling thread, or the CPUs of what has this status."""
    own = text or Path("/proc/thread-self/status").read_text()
    (cpus,) = [line for line in own.splitlines() if line.startswith("Cpus_allowed_list")]
    return cpus, os.sched_getscheduler(0) if text is None else None


@contextlib.contextmanager
def threads_of_kernels(count):
    """So many, on an idle machine; whatever goes wrong, the session goes on as it was."""
    before, cpus = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(count)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(one_cpu, "_is_a_cpu_idle", lambda: True)
            yield
    finally:
        torch.set_num_threads(before)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cpus)


class Stop(Exception):
    pass


@settings(max_examples=20)
@given(count=st.integers(1, 3), seed=st.integers(0, 5), fails=st.booleans())
@example(count=2, seed=0, fails=True)
def test_threads_of_a_schedule_share_a_cpu_and_have_theirs_back(count, seed, fails):
    before, found, seen = of_the_system(), [], set(os.sched_getaffinity(0))

    def look():
        found.append((of_the_system(), os.sched_getaffinity(0)))

    with threads_of_kernels(1):
        with contextlib.suppress(Stop), simgpu.schedule(seed, "random"):
            threads = [threading.Thread(target=look) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            look()
            if fails:
                raise Stop
        assert of_the_system() == before
    assert len({real for real, _ in found}) == 1  # all threads have the same
    ((cpus, policy), _), *_ = found
    assert cpus.split()[1].isdigit()
    assert policy == os.SCHED_BATCH
    assert all(told == seen for _, told in found)  # and the program does not see it


def test_a_thread_that_ends_while_all_are_listed_is_no_obstacle():
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    while os.path.exists(f"/proc/self/task/{ended.native_id}"):  # Python is done with it before
        os.sched_yield()
    there, check = one_cpu._threads, test_threads_of_a_schedule_share_a_cpu_and_have_theirs_back
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_cpu, "_threads", lambda: {ended.native_id, *there()})
        check.hypothesis.inner_test(2, 0, False)


def test_what_the_threads_start_has_all_cpus():
    """Processes at once, whichever way they are started; threads of nobody at the end."""
    before, go_on, over = of_the_system(), HOST_LOCK(), HOST_LOCK()
    later = []

    def outlives():
        go_on.acquire()
        later.append(of_the_system())
        over.release()

    def child(write):
        os.write(write, repr(of_the_system()).encode())
        os._exit(0)

    go_on.acquire()
    over.acquire()
    with threads_of_kernels(1), simgpu.schedule():
        _thread.start_new_thread(outlives, ())
        ran = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True)
        read, write = os.pipe()
        if not (process := os.fork()):
            child(write)
        os.waitpid(process, 0)
        assert of_the_system() != before  # and the thread itself goes on where it was
    go_on.release()
    over.acquire()
    assert of_the_system(ran.stdout)[0] == before[0]
    assert os.read(read, 1000).decode() == repr(before)
    assert later == [before]


def test_kernels_of_several_threads_keep_their_cpus():
    before = of_the_system()
    with threads_of_kernels(2), simgpu.schedule():
        assert of_the_system()[0] == before[0]


def test_on_a_busy_machine_the_system_decides():
    before = of_the_system()
    with threads_of_kernels(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_cpu, "_is_a_cpu_idle", lambda: False)
        with simgpu.schedule():
            assert of_the_system() == before
