"""Faults planted in how outputs of asynchronous calls of ranks come to be where programs look."""

from functools import partial

from tests.distributed import test_devices_of_groups as devices
from tests.distributed import test_landing as landing
from tests.distributed import test_memory_formats as formats
from tests.distributed import test_processes as processes
from tests.distributed import test_ranks as ranks
from tests.distributed import test_records as records
from tests.support.plant import fault, run
from tests.tools import test_markers as markers

WORKS = "simgpu._distributed.works"
IN_COMMON = landing.test_calls_on_memory_in_common_are_those_of_one_stream
FAILED = landing.test_a_call_that_fails_lands_nothing_and_keeps_nothing_from_landing
CIRCLE = ranks.test_a_circle_of_sends_or_receives_is_a_deadlock
ENDED = landing.test_a_work_says_how_its_call_ended


def in_a_process():
    """The property of calls on memory in common, on devices of its own."""
    with landing.simgpu.as_cuda(1):
        run(landing.test_so_they_are_in_a_process)


LANDING = [
    fault(
        "outputs in common are those of the first call",
        f"{WORKS}:Pending.land",
        "reversed(self._and_before())",
        "self._and_before()",
        IN_COMMON,
    ),
    fault(
        "a call reads what was there before those on their way",
        f"{WORKS}:Pending.begin",
        "own.copy_(part)",
        "pass",
        IN_COMMON,
    ),
    fault(
        "a call of a process reads what was there before those on their way",
        "simgpu._distributed.gloo:Transport._do",
        "pending.begin()",
        "pass",
        in_a_process,
    ),
    fault(
        "a call reads what the last but one on its way has written",
        f"{WORKS}:Pending.stage",
        "reversed(self._and_before()[1:])",
        "self._and_before()[1:]",
        IN_COMMON,
    ),
    fault(
        "what calls have in common begins where the first tensor does",
        "simgpu._distributed.calls:in_common",
        "begin = max(at, other)",
        "begin = at",
        IN_COMMON,
        raises=Exception,
    ),
    fault(
        "what has failed lands",
        f"{WORKS}:Pending.finish",
        "self._landing = []",
        "pass",
        FAILED,
    ),
    fault(
        "behind a call that has failed nothing lands",
        f"{WORKS}:Pending.land",
        "    self._wait(seconds)\n    for",
        "    self.await_(seconds)\n    for",
        FAILED,
    ),
    fault(
        "what a thread is about to submit does not land before a call that has failed",
        f"{WORKS}:Pending.land",
        " or pending._waits is not None",
        "",
        FAILED,
    ),
    fault(
        "a call reads what a call that has failed was to write",
        f"{WORKS}:Pending.begin",
        "if earlier.error is None:",
        "if True:",
        FAILED,
    ),
    fault(
        "a wait for what has failed raises nothing",
        f"{WORKS}:Pending.land",
        "self._raise()",
        "return",
        FAILED,
    ),
    fault(
        "what has failed is a success",
        f"{WORKS}:Work.is_success",
        " and self.exception() is None",
        "",
        ENDED,
    ),
    fault(
        "what is on its way is a success",
        f"{WORKS}:Work.is_success",
        "self.is_completed() and ",
        "",
        ENDED,
    ),
    fault(
        "a work knows no error",
        f"{WORKS}:Work.exception",
        "if pending.error)",
        "if False)",
        ENDED,
    ),
    fault(
        "a future has the outputs that the program holds",
        f"{WORKS}:Work.get_future",
        "outputs = self.result()\n    self._land()",
        "self._land()\n    outputs = self.result()",
        landing.test_a_future_has_outputs_that_only_the_work_holds,
        raises=Exception,
    ),
    fault(
        "a deadlock of sends names no peer",
        "simgpu._ranks.meeting:Transport._named",
        "call.shown",
        "call.says",
        CIRCLE,
    ),
    fault(
        "a deadlock of sends names peers by their numbers in the group",
        "simgpu._distributed.issue:_between_two",
        "group.ranks[call.peer]",
        "call.peer",
        CIRCLE,
    ),
    fault(
        "a device that is first used has no name",
        "simgpu._distributed.communicators:Communicator._tell_device",
        "the device{name} first",
        "a device first",
        devices.test_ranks_change_their_devices_together_or_are_told_so,
    ),
    fault(
        "a rank that lies otherwise is told no way out",
        "simgpu._distributed.agreement:check",
        "if len(layouts) > 1",
        "if False",
        partial(formats.test_a_collective_tells_ranks_whose_tensors_lie_otherwise, name="reduce"),
    ),
    fault(
        "tensors that are not contiguous lie alike",
        "simgpu._distributed.calls:lies",
        "found.group()",
        "LIES",
        formats.test_ranks_whose_tensors_lie_otherwise_are_told_so,
    ),
    *(
        fault(
            f"what is said behind a layout belongs to it: {told}",
            "simgpu._distributed.calls:lies",
            "found.group()",
            "shown[found.start() :]",
            partial(
                formats.test_ranks_whose_tensors_lie_alike_are_told_of_what_differs_alone,
                told=told,
            ),
        )
        for told in formats.ELSE
    ),
    *(
        fault(
            f"{name} shows the shape that lies in memory",
            f"simgpu._distributed.{where}",
            right,
            wrong,
            partial(formats.test_a_collective_tells_ranks_whose_tensors_lie_otherwise, name=name),
        )
        for name, where, right, wrong in (
            ("all_gather", "moving:allgather_", "group, outs[0])", "group, outputs)"),
            ("gather", "moving:gather_", "described(ins)", "described([mine])"),
            ("scatter", "moving:scatter_", "described(outs)", "described([out])"),
            ("reduce_scatter", "reducing:reduce_scatter_", "kind, ins[0])", "kind, parts)"),
            (
                "all_reduce",
                "reducing:allreduce_coalesced_",
                "described([tensor])",
                "described([host])",
            ),
        )
    ),
    fault(
        "calls are alike that show the same",
        "simgpu._distributed.records:_record",
        "says.encode()",
        "shown.encode()",
        records.test_calls_are_alike_that_say_the_same_to_the_end,
    ),
    *(
        fault(
            name,
            "simgpu._pytest.ranks:_may_ask_while_it_runs",
            old,
            new,
            markers.test_a_fixture_of_the_suite_may_ask_for_ranks_while_it_runs,
        )
        for name, old, new in (
            (
                "a fixture cannot ask for ranks while it runs",
                'any("request" in each.argnames',
                'any("requests" in each.argnames',
            ),
            (
                "a fixture of pytest's counts as one that may ask for ranks",
                " and not _is_known(each)",
                "",
            ),
        )
    ),
    *(
        fault(
            name,
            f"simgpu._pytest.ranks:{function}",
            old,
            new,
            markers.test_a_marker_of_ranks_that_runs_none_is_an_error,
        )
        for function, name, old, new in (
            (
                "tell_if_unused",
                "a marker of ranks that nothing runs on is ignored",
                "marker is None",
                "True",
            ),
            (
                "tell_if_unused",
                "a test whose fixture runs ranks is told that none do",
                '"ranks" in names',
                "False",
            ),
            (
                "tell_if_unused",
                "a suite has no marker of its own for ranks",
                "not is_ours(item, DESCRIPTION)",
                "False",
            ),
            (
                "_may_ask_while_it_runs",
                "a test cannot ask for ranks while it runs",
                '"request" in inspect',
                '"requests" in inspect',
            ),
        )
    ),
    fault(
        "a group that is being made is watched before it can be found",
        "simgpu._distributed.communicators:_make",
        "communicator = _communicators[group] = Communicator(group)\n            _watch()",
        "_watch()\n            communicator = _communicators[group] = Communicator(group)",
        processes.test_a_group_is_watched_whatever_dies_while_it_is_made,
    ),
    fault(
        "the last group that is gone counts as one that is there",
        "simgpu._distributed.communicators:_stop_watching",
        "each() is not None for",
        "True for",
        processes.test_a_group_is_watched_whatever_dies_while_it_is_made,
    ),
]
