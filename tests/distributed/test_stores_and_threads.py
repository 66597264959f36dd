"""Ranks in threads that ask a store, or a work, again and again, and threads that they start."""

import os
import re
import threading
from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu._core import world
from simgpu.errors import DeadlockError
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


def default_store():
    return vars(dist.distributed_c10d)["_get_default_store"]()


def until(question, *arguments):
    """Ask again and again, and not for ever."""
    for _ in range(5000):
        if question(*arguments):
            return
    raise AssertionError("no answer")


def has_key(store):
    return store.check(["key"])


# What a rank asks until another one has answered: whether it has, how it does, if it does.
QUESTIONS = {
    "check": (has_key, lambda store: store.set("key", "")),
    "add": (lambda store: store.add("count", 0) > 0, lambda store: store.add("count", 1)),
    "compare_set": (
        lambda store: store.compare_set("turn", "yours", "mine") == b"mine",
        lambda store: store.set("turn", "yours"),
    ),
    "num_keys": (
        lambda store: store.num_keys() >= int(store.get("enough")),
        lambda store: [store.set(f"key {number}", "") for number in range(9)],
    ),
}


@few
@given(
    name=st.sampled_from(sorted(QUESTIONS)),
    asking=st.integers(0, 1),
    seed=schedules,
)
def test_polling_rank_lets_the_answering_one_run(name, asking, seed):
    asks, answers = QUESTIONS[name]

    def run(rank):
        store = default_store()
        if rank == 1:
            store.set("enough", str(store.num_keys() + 9))
        dist.barrier(device_ids=[rank])
        until(asks, store) if rank == asking else answers(store)
        return rank

    assert simgpu.ranks(2, run, schedule=seed) == [0, 1]


@pytest.mark.parametrize("ended", [True, False])
def test_unanswered_question_is_a_deadlock(ended):
    def run(rank):
        if rank == 0 or not ended:
            until(default_store().check, ["never"])

    asked = r"rank 0 waits for a store, by check\(\['never'\],\), asked 1000 times in a row"
    with pytest.raises(DeadlockError, match=asked):
        simgpu.ranks(2, run)


@pytest.mark.parametrize("other", [("localhost", 29502), ("127.0.0.1", 29501)])
def test_stores_of_other_addresses_have_other_keys(other):
    def run(rank):
        here, there = (dist.TCPStore(*to, 1, True) for to in (("localhost", 29501), other))
        here.set("key", "")
        return here.check(["key"]), there.check(["key"])

    assert simgpu.ranks(1, run) == [(True, False)]


@given(wanted=st.integers(0, 4), master=st.booleans(), waits=st.booleans(), seed=schedules)
def test_store_waits_for_others_only_as_a_waiting_server(wanted, master, waits, seed):
    """For as many as it says, itself among them: here there are two."""

    def run(rank):
        first = rank == 0
        dist.TCPStore("localhost", 29503, wanted, first and master, wait_for_workers=waits)
        return rank

    if master and waits and wanted > 2:
        with pytest.raises(DeadlockError, match=f"rank 0 waits for {wanted} ranks at the store"):
            simgpu.ranks(2, run, schedule=seed)
    else:
        assert simgpu.ranks(2, run, schedule=seed) == [0, 1]


def test_polling_with_progress_is_no_deadlock():
    """However many they are."""

    def run(rank):
        for _ in range(600):
            default_store().check(["never"])
            default_store().add("count", 1)
            dist.barrier(device_ids=[rank])
        return default_store().add("count", 0)

    assert simgpu.ranks(1, run) == [600]


@few
@given(
    how=st.sampled_from(["argument", "store"]),
    milliseconds=st.integers(1, 9999),
    comes=st.booleans(),
)
def test_short_timeout_ends_a_world_without_progress(how, milliseconds, comes):
    """At once, since no other rank will set the key: no time passes."""
    limit = timedelta(milliseconds=milliseconds)

    def run(rank):
        store = default_store()
        if rank == 0:
            if how == "store":
                store.set_timeout(limit)
            try:
                store.wait(["key"], *[limit] * (how == "argument"))
                found = True
            except dist.DistStoreError:
                found = False
            assert found == comes
        elif comes:
            store.set("key", "")
        dist.barrier(device_ids=[rank])
        return rank

    assert simgpu.ranks(2, run) == [0, 1]


@few
@given(count=st.integers(1, 3), seed=st.integers(0, 99), late=st.booleans())
def test_threads_that_a_rank_starts_have_its_groups_and_stores(count, seed, late):
    """In a schedule, where they take turns with those of other ranks."""

    def start(rank):
        found, group = [], dist.new_group(range(count))

        def use():
            torch.cuda.set_device(rank)
            x = torch.ones(2, device="cuda")
            dist.all_reduce(x, group=group)
            by_name = torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name)
            total = torch.ops._c10d_functional.wait_tensor(by_name)
            default_store().set(f"by {rank}", "")
            default_store().wait([f"by {other}" for other in range(count)])
            found.extend([os.environ["RANK"], dist.get_rank(), x.tolist(), total.tolist()])

        def work():
            try:
                use()
            except (RuntimeError, ValueError) as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        if late:
            thread.join()
        y = torch.ones(1, device="cuda")
        dist.all_reduce(y)
        thread.join()
        assert y.item() == count
        return found

    wanted = [[str(rank), rank, [float(count)] * 2, [float(count**2)] * 2] for rank in range(count)]
    assert simgpu.ranks(count, start, schedule=seed) == wanted


def call(rank):
    dist.all_reduce(torch.ones(1, device=f"cuda:{rank}"))


WAITS = {
    "all_reduce": call,
    "'key' in a store": lambda rank: default_store().get("key"),
    "a store, by check": lambda rank: has_key(default_store()),
}


@pytest.mark.parametrize("what", WAITS)
def test_thread_of_a_rank_raises_without_a_schedule(what):
    def start(rank):
        reported = []

        def work():
            try:
                WAITS[what](rank)
            except RuntimeError as error:
                reported.append(str(error))

        thread = threading.Thread(target=work, name="helper")
        thread.start()
        thread.join()
        dist.barrier(device_ids=[rank])
        return reported

    for (text,) in simgpu.ranks(2, start):
        assert text.startswith(what), text
        assert re.search("helper is a thread that a rank has .* simgpu.ranks.*schedule=seed", text)


def test_deadlock_names_both_waiting_threads_of_a_rank():
    def start(rank):
        def work():
            with pytest.raises(DeadlockError):
                default_store().get("one")

        threading.Thread(target=work).start()
        default_store().get("other")

    with pytest.raises(DeadlockError, match="rank 0 waits for") as raised:
        simgpu.ranks(1, start, schedule=0)
    assert "'one' in a store" in str(raised.value)
    assert "'other' in a store" in str(raised.value)


@few
@given(count=st.integers(1, 3))
def test_thread_of_no_rank_uses_a_store_as_outside_a_world(count):
    """Nothing schedules it: what it waits for is there, or comes from another process."""

    def go(rank):
        mine, store = world.this_rank(), dist.HashStore()
        store.set("key", "value")
        world.set_rank(None)
        try:
            found = [store.get("key"), store.multi_get(["key"]), store.check(["none"])]
            with pytest.raises(dist.DistError):
                store.wait(["none"], timedelta(milliseconds=1))
        finally:
            world.set_rank(mine)
        return found

    assert simgpu.ranks(count, go) == [[b"value", [b"value"], False]] * count
