"""The rules of a schedule one by one: what is a point, who is next, what a token compares."""

import gc
import queue
import re
import threading
import time
from functools import partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import simgpu
from simgpu._explore.schedules.strategies import PCT, RULES, Choice, Random, Strategy
from simgpu._explore.schedules.tasks import Task
from simgpu._explore.schedules.tokens import MOST, Drawn, Replay, checksum, token_of
from simgpu.errors import ScheduleDivergedError
from tests.support.threads import in_threads


def together(*functions):
    """Run them in threads of the schedule; the result is a list that each may append to."""
    found = []
    in_threads(*(partial(each, found.append) for each in functions))
    return found


CHOICES = st.lists(
    st.builds(
        lambda options, rank: Choice(options[0], "lock", tuple(options), rank % len(options)),
        st.permutations(range(4)).flatmap(lambda it: st.integers(2, 4).map(lambda n: it[:n])),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=60,
)


def replayed(replay, trace):
    """Let a replay see this trace."""
    seen = []
    for choice in trace:
        seen.append(choice)
        replay.chose(seen)
    replay.ended(seen)


def made_by(strategy, choices):
    """A trace of a strategy, at the same places as these choices."""
    trace, tasks = [], [Task(None, number, "") for number in range(4)]
    for task in tasks:
        strategy.began(task)
    for number, choice in enumerate(choices):
        options = [tasks[number] for number in choice.options]
        trace.append(choice._replace(rank=strategy.rank(options, tasks[choice.task], number)))
    return trace


@given(trace=CHOICES, rule=st.sampled_from(sorted(RULES)))
def test_a_token_holds_its_choices(trace, rule):
    replay = Replay(token_of(Strategy(rule), trace))
    assert replay.rule == rule
    assert made_by(replay, trace) == trace


STRATEGIES = {
    "random": lambda seed, numbers: Random(seed),
    "pct": lambda seed, numbers: PCT(seed, seed % 100 + 1, seed >> 8),
    "drawn": lambda seed, numbers: Drawn(numbers.randrange, sorted(RULES)[seed % 5]),
    "often": lambda seed, numbers: Drawn(lambda n: n - 1),
    "rarely": lambda seed, numbers: Drawn(lambda n: max(0, numbers.randrange(-97, n))),
}


@given(
    choices=CHOICES,
    length=st.integers(1, 500),
    seed=st.integers(0, 2**64 - 1),
    kind=st.sampled_from(sorted(STRATEGIES)),
    numbers=st.randoms(use_true_random=False),
)
def test_the_token_of_a_program_of_any_length_is_short_and_holds_its_choices(
    choices, length, seed, kind, numbers
):
    choices = (choices * length)[:length]
    trace = made_by(STRATEGIES[kind](seed, numbers), choices)
    token = token_of(STRATEGIES[kind](seed, numbers), trace)
    assert len(token) <= MOST < 100
    replay = Replay(token)
    assert replay.rule == STRATEGIES[kind](seed, numbers).rule
    assert made_by(replay, trace) == trace
    replayed(replay, trace)


@given(trace=CHOICES, data=st.data())
def test_a_replay_notices_every_difference(trace, data):
    """A choice more or less, another one anywhere, the last one too, and fewer than were there."""
    token = token_of(Strategy(), trace)
    with pytest.raises(ScheduleDivergedError, match=f"had ended after {len(trace)} choices"):
        replayed(Replay(token), [*trace, trace[-1]])
    with pytest.raises(ScheduleDivergedError, match="ended after"):
        replayed(Replay(token), trace[:-1])
    at = data.draw(st.integers(0, len(trace) - 1) | st.just(len(trace) - 1))
    other = [*trace]
    other[at] = trace[at]._replace(what="queue.get")
    # A byte is compared after some choices, and always after the last one.
    assume(checksum(other) & 255 != checksum(trace) & 255)
    with pytest.raises(ScheduleDivergedError, match="was another") as caught:
        replayed(Replay(token), other)
    # It says where, to a sixteenth of the schedule.
    low, high = re.findall(r"between its choices (\d+) and (\d+)", str(caught.value))[0]
    assert int(high) - int(low) < -(-len(trace) // 16)
    few = [choice._replace(rank=0) for choice in trace]
    few[at] = trace[at]
    if trace[at].rank:
        other = [*few]
        other[at] = trace[at]._replace(options=trace[at].options[: trace[at].rank])
        with pytest.raises(ScheduleDivergedError, match=r"was (to be taken|another)") as caught:
            replayed(Replay(token_of(Strategy(), few)), other)
        assert "to be taken" in str(caught.value)


@given(depth=st.integers(1, 5), seed=st.integers(0, 100))
def test_priorities_fall_at_depth_minus_one_moments(depth, seed):
    strategy = PCT(seed, depth, length=20)
    tasks = [Task(None, number, "") for number in range(2)]
    for task in tasks:
        strategy.began(task)
    changes = 0
    for number in range(40):
        before = [task.priority for task in tasks]
        me = max(tasks, key=lambda task: task.priority)
        best = strategy.rank(tasks, me, number)
        assert tasks[best].priority == max(task.priority for task in tasks)
        changes += before != [task.priority for task in tasks]
    assert (depth > 1) <= changes <= depth - 1


def test_timed_out_wait_takes_no_message_of_others():
    condition = threading.Condition()

    def impatient(note):
        with condition:
            note(condition.wait(1))

    def patient(note):
        time.sleep(2)
        with condition:
            note(condition.wait())

    def notifies(note):
        time.sleep(3)
        with condition:
            condition.notify()

    with simgpu.schedule():
        assert together(impatient, patient, notifies) == [False, True]


def test_a_queue_that_stays_empty_times_out():
    with simgpu.schedule():
        for kind in (queue.SimpleQueue, queue.Queue):
            with pytest.raises(queue.Empty):
                kind().get(timeout=1)
            with pytest.raises(queue.Empty):
                kind().get(block=False)
            with pytest.raises(queue.Empty):
                kind().get_nowait()


def test_a_thread_that_asks_for_an_event_or_an_end_lets_others_go_on():
    for seed in range(5):
        with simgpu.schedule(seed, "random"):
            event = threading.Event()

            def asks(note, event=event):
                note(any(event.is_set() for _ in range(20_000)))

            def tells(note, event=event):
                event.set()

            assert together(asks, tells) == [True]
            thread = threading.Thread(target=time.sleep, args=(1,))
            thread.start()
            assert any(not thread.is_alive() for _ in range(20_000))


def test_the_end_of_a_thread_is_not_interrupted_by_others():
    order, kept = [], threading.local()
    nobody_releases = threading.Lock()
    nobody_releases.acquire()

    class Last:
        def __del__(self):
            nobody_releases.acquire(timeout=0.05)  # whoever may go on does
            order.append("end")

    def work():
        kept.last = Last()

    with simgpu.schedule():
        threading.Thread(target=work).start()
        time.sleep(1)
        order.append("others")
    assert order == ["end", "others"]


def test_trying_a_lock_and_starting_a_thread_are_points():
    with simgpu.schedule() as schedule:
        lock = threading.Lock()
        assert together(*[lambda note: note(lock.acquire(blocking=False))] * 2) == [True, False]
    assert {"lock", "start"} <= {choice.what for choice in schedule.trace}


def test_kernels_and_copies_are_points(simulated):
    def kernel(note):
        torch.ones(1, device=simulated[0]).add_(1)

    def copy(note):
        torch.ones(1).to(simulated[1])

    for work, expected in ((kernel, "aten::add_"), (copy, "copy")):
        with simgpu.schedule() as schedule:
            together(work, work)
        points = {choice.what for choice in schedule.trace}
        assert any(expected.split("::")[-1] in point for point in points), points


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(enabled):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with simgpu.schedule():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
