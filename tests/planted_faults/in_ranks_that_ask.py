"""Faults planted in what ranks in threads ask in loops, and in the threads that they start."""

import tempfile
from functools import partial
from pathlib import Path

import pytest

from simgpu.errors import DeadlockError
from tests.distributed import test_processes as processes
from tests.distributed import test_stores_and_threads as asking
from tests.distributed import test_timelines as timelines
from tests.simulator.timing import test_command as command
from tests.support.plant import fault

STARTED = asking.test_threads_that_a_rank_starts_have_its_groups_and_stores


def table_and_timeline() -> None:
    """The property of `--summary` and `--trace`, in a folder and a world of its own."""
    with tempfile.TemporaryDirectory() as folder, timelines.simgpu.as_cuda(2):
        timelines.test_collectives_stand_in_table_and_timeline(
            partial(timelines.simgpu.ranks, 2), Path(folder)
        )


def one_file_of_all_ranks() -> None:
    """The property of `--trace` and `--summary` where torchrun has started the ranks."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        timelines.test_the_ranks_of_a_run_have_one_file(Path(folder), environment)


RANKS_THAT_ASK = [
    *(
        fault(
            name,
            "simgpu._ranks.stores:TCPStore.__init__",
            "if is_master and wait_for_workers and",
            new,
            asking.test_only_a_server_that_says_so_waits_for_others,
            raises=error,
        )
        for name, new, error in (
            (
                "a store that is no server waits for others",
                "if wait_for_workers and",
                DeadlockError,
            ),
            ("a server waits for others though told not to", "if is_master and", DeadlockError),
            ("a server waits for nobody", "if False and", None),
        )
    ),
    fault(
        "a table does not say whose it is",
        "simgpu._profiling.launched_ranks:heading",
        'f"rank {rank} of {count}\\n"',
        '""',
        one_file_of_all_ranks,
    ),
    fault(
        "a process of a run of no ranks is none of them",
        "simgpu._profiling.launched_ranks:rank_and_count",
        " if rank < count else (0, 1)",
        "",
        command.test_a_process_that_is_alone_writes_its_own_timeline,
        raises=IndexError,
    ),
    fault(
        "a rank of several is run again alone",
        "simgpu._cli.estimates:ClockUntilExit._end",
        "if heading:",
        "if False:",
        command.test_only_a_process_that_is_alone_is_run_again,
    ),
    fault(
        "Ctrl-C goes on with the next number of devices",
        "simgpu._cli.estimates:ClockUntilExit._on_others",
        "found[n] = self._run_with(n)",
        "with contextlib.suppress(KeyboardInterrupt): found[n] = self._run_with(n)",
        command.test_ctrl_c_ends_the_further_runs_and_keeps_the_table,
    ),
    fault(
        "a program is run again without a word",
        "simgpu._cli.estimates:ClockUntilExit._end",
        "{AGAIN.format(again)}",
        "",
        command.test_only_a_process_that_is_alone_is_run_again,
    ),
    fault(
        "who asks a store in a loop keeps the others from going on",
        "simgpu._ranks.turns:_InTurn._order",
        "me in ready and not me.yielding",
        "me in ready",
        asking.test_who_asks_whether_a_call_has_run_lets_others_come_to_it,
        raises=DeadlockError,
    ),
    fault(
        "whether a call has run is asked without a turn of others",
        "simgpu._distributed.works:Pending.has_run",
        "self._asks is not None and",
        "False and",
        asking.test_who_asks_whether_a_call_has_run_lets_others_come_to_it,
    ),
    fault(
        "a question that nobody answers is asked for ever",
        "simgpu._ranks.turns:Turns.ask",
        "self._asked_in_vain > _IN_VAIN",
        "False",
        partial(asking.test_a_question_that_nobody_answers_is_a_deadlock, ended=True),
    ),
    fault(
        "all questions of a loop count, whatever comes between them",
        "simgpu._ranks.turns:Turns.ask",
        "if nothing_else else 0",
        "",
        asking.test_questions_between_which_something_happens_go_on,
        raises=DeadlockError,
    ),
    fault(
        "a short time-out of a store is a deadlock",
        "simgpu._ranks.stores:_waiting",
        "limit if limit < PATIENT else None",
        "None",
        asking.test_a_short_time_out_comes_where_nobody_can_go_on,
        raises=DeadlockError,
    ),
    fault(
        "the time-out of a call on a store is not looked at",
        "simgpu._ranks.stores:_waiting",
        "next(iter((*args, *kwargs.values())), self.timeout)",
        "self.timeout",
        asking.test_a_short_time_out_comes_where_nobody_can_go_on,
        raises=DeadlockError,
    ),
    fault(
        "threads that a rank starts know none of its groups",
        "simgpu._ranks.thread_groups:rank_of_thread",
        "_per_thread.groups = rank, carrier, groups",
        "_per_thread.groups = rank, carrier, None",
        STARTED,
    ),
    fault(
        "threads that a rank starts find no group by its name",
        "simgpu._ranks.thread_groups:rank_of_thread",
        "register(name, group)",
        "pass",
        STARTED,
    ),
    fault(
        "of two threads of a rank that wait one is told of",
        "simgpu._ranks.turns:Turns._why_nobody_can",
        "if rank in waiting else what",
        "if False else what",
        asking.test_two_threads_of_a_rank_that_wait_are_both_told_of,
    ),
    fault(
        "the root of a broadcast sends no bytes in the table",
        "simgpu._profiling.summary:Totals.after_launch",
        "record.collective.nbytes",
        "record.nbytes",
        table_and_timeline,
    ),
    fault(
        "the root of a broadcast sends no bytes in the timeline",
        "simgpu._profiling.chrome_trace:Timeline.as_json",
        "_of_call(collective)",
        '{**_of_call(collective), "bytes": nbytes}',
        table_and_timeline,
    ),
    fault(
        "a group that dies waits for whoever adds an instrument",
        "simgpu._distributed.communicators:_close",
        "wait=False",
        "wait=True",
        processes.test_a_group_that_dies_waits_for_nobody,
    ),
    fault(
        "stores of two ports have the same keys",
        "simgpu._ranks.stores:TCPStore.__init__",
        "//{host_name}:{port}",
        "//{host_name}",
        partial(asking.test_stores_of_other_addresses_have_other_keys, other=("localhost", 29502)),
    ),
]
