"""Ranks that wait for each other by other means than collectives, or hold the turn for long."""

import asyncio
import concurrent.futures
import fcntl
import io
import queue
import re
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
from time import sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu._explore.schedules import stalls
from simgpu.errors import DeadlockError, RankLostError
from tests.support.worlds import few

MOMENT = 1e-4  # seconds


def polls(pause):
    """A file that rank 1 writes, and rank 0 asks for in a loop."""

    def make(folder):
        path = folder / "written"

        def wait():
            while not path.exists():
                pause()
            return path.read_text()

        return wait, lambda: path.write_text("come")

    return make


def event(_):
    it = threading.Event()
    return (lambda: it.wait() and "come"), it.set


def fifo(_):
    it = queue.Queue()
    return it.get, lambda: it.put("come")


def future(_):
    it = concurrent.futures.Future()
    return it.result, lambda: it.set_result("come")


def lock(_):
    it = threading.Lock()
    it.acquire()
    return (lambda: it.acquire() and "come"), it.release


def connection(_):
    server = socket.create_server(("127.0.0.1", 0))

    def wait():
        found, _ = server.accept()
        with found, server:
            return found.recv(4).decode()

    def act():
        with socket.create_connection(server.getsockname()) as it:
            it.sendall(b"come")

    return wait, act


def selected(find):
    """A socket that has nothing to be read until rank 1 writes."""

    def make(_):
        one, other = socket.socketpair()

        def wait():
            with one:
                assert find(one) == one
                one.setblocking(False)
                return one.recv(4).decode()

        def act():
            with other:
                other.sendall(b"come")

        return wait, act

    return make


def by_selector(one):
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ)
        ((key, _),) = selector.select()
        return key.fileobj


def stream(_):
    one, other = socket.socketpair()

    async def read():
        reader, writer = await asyncio.open_connection(sock=one)
        found = await reader.readexactly(4)
        writer.close()
        return found.decode()

    def act():
        with other:
            other.sendall(b"come")

    return (lambda: asyncio.run(read())), act


def file_lock(folder):
    """Rank 0 asks for the lock that rank 1 holds until it has slept."""
    path = folder / "lock"
    held = threading.Event()

    def wait():
        held.wait()
        with path.open("w") as it:
            fcntl.flock(it, fcntl.LOCK_EX)
            return "come" if path.with_name("done").exists() else "too soon"

    def act():
        with path.open("w") as it:
            fcntl.flock(it, fcntl.LOCK_EX)
            held.set()
            time.sleep(MOMENT)
            path.with_name("done").touch()
            fcntl.flock(it, fcntl.LOCK_UN)

    return wait, act


WAYS = {
    "a loop that sleeps": polls(lambda: time.sleep(MOMENT)),
    "a loop that sleeps by a name of its own": polls(lambda: sleep(MOMENT)),
    "a loop that sleeps for no time": polls(lambda: time.sleep(0)),
    "an event": event,
    "a queue": fifo,
    "a future": future,
    "a lock": lock,
    "a connection": connection,
    "select": selected(lambda one: select.select([one], [], [])[0][0]),
    "select for an hour": selected(lambda one: select.select([one], [], [], 3600)[0][0]),
    "a selector": selected(by_selector),
    "a stream of asyncio": stream,
    "the lock of a file": file_lock,
}


@pytest.mark.parametrize("way", WAYS)
def test_waiting_rank_lets_others_run(tmp_path, way):
    wait, act = WAYS[way](tmp_path)
    found = simgpu.ranks(2, lambda rank: wait() if rank == 0 else act() and None)
    assert found == ["come", None]


@pytest.mark.full
def test_rank_waiting_for_a_child_process_lets_others_run(tmp_path):
    code = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'it')!r}).exists(): "
    command = [sys.executable, "-c", code + "time.sleep(0.01)\nprint('come')"]

    def go(rank):
        if rank == 0:
            return subprocess.check_output(command, text=True)
        (tmp_path / "it").write_text("")
        return None

    assert simgpu.ranks(2, go) == ["come\n", None]


@few
@given(st.integers(1, 50))
def test_polling_rank_waits_for_a_sleeping_one(times):
    def go(rank):
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            while not store.check(["it"]):
                pass
            return store.get("it")
        for _ in range(times):
            time.sleep(MOMENT)
        return store.set("it", "come")

    assert simgpu.ranks(2, go) == [b"come", None]


@pytest.mark.parametrize("way", ["an event", "a queue", "a future", "a lock"])
def test_wait_for_an_action_of_no_rank_is_a_deadlock(tmp_path, way):
    wait, _ = WAYS[way](tmp_path)

    def go(rank):
        wait() if rank == 0 else dist.barrier(device_ids=[rank])

    with pytest.raises(DeadlockError, match="no rank can go on: thread 1") as caught:
        simgpu.ranks(2, go)
    assert "(rank 0) waits" in str(caught.value)
    assert f"rank 1 waits for barrier at {__file__}" in str(caught.value)


@pytest.mark.parametrize("every", [None, 500 * MOMENT])
def test_deadlock_is_found_beside_older_waiting_threads(every):
    """A server's thread waits for ever; that of a progress bar looks up, and waits again."""
    stop, rounds = threading.Event(), []

    def look():
        while not stop.wait(every):
            rounds.append(None)

    def go(rank):
        there = len(rounds)
        while every is not None and len(rounds) < there + 2:
            time.sleep(MOMENT)
        threading.Event().wait()

    older = threading.Thread(target=look)
    older.start()
    still, before = 0, None
    while still < 20:  # it is where it waits, and not on its way there
        frame = sys._current_frames()[older.ident]
        still = still + 1 if frame.f_lasti == before else 0
        before = frame.f_lasti
        sleep(MOMENT)
    try:
        with pytest.raises(DeadlockError):
            simgpu.ranks(2, go)
    finally:
        stop.set()
        older.join()


def test_an_older_thread_at_work_is_waited_for():
    jobs = queue.SimpleQueue()
    older = threading.Thread(target=lambda: jobs.get()())
    older.start()

    def go(rank):
        come = threading.Event()
        if rank == 0:
            jobs.put(lambda: sum(range(10**6)) and come.set())
            assert come.wait(timeout=60)
        return rank

    assert simgpu.ranks(2, go) == [0, 1]
    older.join()


@given(count=st.integers(2, 4), data=st.data())
def test_polling_ranks_end_after_another_fails(count, data):
    """In a loop that sleeps, of which nothing shows that it will never end."""
    failing = data.draw(st.integers(0, count - 1))
    ended = []

    def go(rank):
        if rank == failing:
            raise KeyError(rank)
        try:
            while True:
                time.sleep(MOMENT)
        except RankLostError as error:
            ended.append((rank, f"rank {failing} has raised KeyError" in str(error)))
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stalls, "LONG", 20 * MOMENT)
        patch.setattr(sys, "stderr", io.StringIO())
        with pytest.raises(KeyError):
            simgpu.ranks(count, go)
    assert sorted(ended) == [(rank, True) for rank in range(count) if rank != failing]


@pytest.mark.parametrize("rests", [False, True])
def test_rank_that_runs_long_is_reported(monkeypatch, rests):
    words = io.StringIO()
    monkeypatch.setattr(sys, "stderr", words)
    monkeypatch.setattr(stalls, "LONG", MOMENT)
    # An earlier report may be of a line in which the rank begins.
    own = rf"rank 0 has had the turn for \d+ s, at {re.escape(__file__)}:"
    wanted = f"simgpu.ranks: {'no rank has gone on for' if rests else own}"

    def go(rank):
        if rank == 0:
            while not re.search(wanted, words.getvalue()):  # of which nothing is known
                if rests:
                    sleep(MOMENT)
        dist.barrier(device_ids=[rank])

    simgpu.ranks(2, go)
    text = words.getvalue()
    if rests:
        assert "thread 1 (rank 0) sleeps" in text
    else:
        assert "thread 2 (rank 1) can go on" in text
