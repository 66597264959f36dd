"""Mistakes in the order of streams, in graphs, in the clock and in schedules of threads."""

from simgpu._core.order import merge
from tests.support.plant import (
    call_instead,
    fault,
    instead,
)


def give_up(*_):
    raise TimeoutError


MISSING = "test_only_missing_parts_are_reported"
BY_HAND = "test_any_program_takes_the_time_worked_out_by_hand"

RACES = [
    fault(
        "the stream that is waited for waits",
        "Order.wait",
        call_instead("merge", lambda clock, other: merge(other, clock)),
        MISSING,
        name="read_after_write",
    ),
    fault(
        "an event marks what comes after it too",
        "Order.record",
        call_instead("dict", lambda clock: clock),
        MISSING,
        name="event_recorded_too_early",
    ),
]

ASYNCHRONOUS = [
    fault(
        "copies of pageable memory read it when they run",
        "simgpu:staged_copy",
        instead(lambda stock: lambda launch: None),
        "test_copies_between_host_and_device",
    ),
    fault(
        "an event that is polled is never done",
        "Asynchronous.is_done",
        call_instead("step", give_up),
        "test_an_event_is_done_when_the_work_before_it_has_run",
        raises=TimeoutError,
    ),
]

SLEEP = "test_wait_for_a_stream_includes_its_sleep"

STREAMS = [
    fault(
        "an event is done before the work in front of it",
        "Event.record",
        call_instead("max", lambda now, busy: now),
        SLEEP,
    ),
    fault(
        "a device is done with its first stream",
        "simgpu/_core:synchronize",
        call_instead("max", min),
        SLEEP,
    ),
]

REPLAYS = "test_replays_repeat_the_program"
EVENTS = "test_replay_records_and_waits_as_the_program"

GRAPHS = []

CLOCK = [
    fault(
        "a kernel does not wait for the one before it",
        "Machine._queue",
        call_instead("max", lambda ready, free: ready, at=1),
        BY_HAND,
    ),
]

SCHEDULES = [
    fault(
        "a time-out that comes late sets the clock back",
        "Scheduler._expire",
        call_instead("max", lambda now, due: due),
        "test_time_goes_on_and_no_wait_is_shorter_than_it_said",
    ),
    fault(
        "a replay accepts another program",
        "Replay.chose",
        instead(lambda stock: lambda *args: None),
        "test_a_replay_of_another_program_names_where_it_diverged",
    ),
    fault(
        "a deadlock names lines of Python's library",
        "_is_library",
        instead(lambda stock: lambda frame: False),
        "test_a_deadlock_names_every_thread_and_its_line",
    ),
]

ORDER = [*RACES, *ASYNCHRONOUS, *STREAMS, *GRAPHS, *CLOCK, *SCHEDULES]
