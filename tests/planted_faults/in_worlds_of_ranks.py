"""Faults planted in how ranks find each other, in what they exchange, and in what is kept of it."""

from functools import partial

from simgpu._ranks import settings as kept
from simgpu.errors import CollectiveMismatchError
from tests.distributed import test_collectives as collectives
from tests.distributed import test_ends_of_ranks as ends
from tests.distributed import test_exchanges as exchanges
from tests.distributed import test_fake_groups as fake
from tests.distributed import test_groups_of_ranks as groups
from tests.distributed import test_orders_of_ranks as orders
from tests.distributed import test_processes as processes
from tests.distributed import test_ranks as ranks
from tests.distributed import test_reductions as reductions
from tests.distributed import test_settings_of_ranks as settings
from tests.distributed import test_what_worlds_keep as left
from tests.distributed import test_works as works
from tests.support.plant import fault


def fakes(name):
    """The property of one collective of the backend "fake"."""
    return partial(fake.test_on_devices_it_does_what_it_does_on_the_cpu, name=name)


def own_settings(name, steps):
    """The property for two blocks, after which the settings are as before, whatever is wrong."""

    def hold():
        before = kept.noted()
        try:
            settings.test_a_block_of_one_rank_changes_nothing_for_others.hypothesis.inner_test(
                name=name, count=2, steps=steps, seed=None
            )
        finally:
            for setting, value in zip(kept._SETTINGS, before, strict=True):
                setting.write(value)

    hold.__name__ = f"own_{name.replace(' ', '_')}"
    return hold


def own_groups():
    """The property of functions that make a default group, on devices by the name of CUDA."""
    with ranks.simgpu.as_cuda(8):
        ranks.test_a_function_that_makes_its_own_group_ends_the_first_or_is_told_of_it()


STORES = processes.test_stores_of_one_address_have_the_same_keys_but_for_those_of_earlier_attempts
POSITIONS = collectives.test_a_mismatch_in_a_coalesced_call_says_which_of_its_tensors_differ

WORLDS_OF_RANKS = [
    fault(
        "a second default group is told in PyTorch's words alone",
        "simgpu._ranks.run:_World._error",
        "if began_twice(error):",
        "if False:",
        own_groups,
    ),
    *(
        fault(name, place, old, new, own_settings("dtype", [(0, 1, 2), (1, 0, 1)]))
        for name, place, old, new in (
            (
                "ranks share the settings of PyTorch",
                "simgpu._ranks.settings:put_back",
                "setting.write(value)",
                "pass",
            ),
            (
                "the settings of a rank are those that it began with",
                "simgpu._ranks.isolation:State.save",
                "self._settings = settings.noted()",
                'vars(self).setdefault("_settings", settings.noted())',
            ),
        )
    ),
    fault(
        "ranks share the order in which reductions add",
        "simgpu._ranks.settings:put_back",
        "value != present and",
        "setting.read is not comm.in_force and value != present and",
        own_settings("order of sums", [(0, 0, 1), (1, 0, 2)]),
    ),
    fault(
        "what a rank notes of NumPy's generator has no numbers",
        "simgpu._ranks.numpy_random:MT19937.state",
        "if self.brief:",
        "if True:",
        orders.test_a_rank_may_put_back_what_numpy_draws_from,
        raises=Exception,
    ),
    *(
        fault(
            name,
            "simgpu._ranks.run:_World._error",
            "if turns.stopped is not None and not turns.is_stop(error):",
            new,
            ends.test_an_error_is_noted_with_what_stopped_the_others,
        )
        for name, new in (
            ("what stopped the others is not told", "if False:"),
            ("a deadlock is told of twice", "if turns.stopped is not None:"),
            ("that nothing stopped the others is told", "if not turns.is_stop(error):"),
        )
    ),
    *(
        fault(
            name,
            "simgpu._ranks.run:_World._error",
            "if isinstance(error, TypeError) and _is_of_the_call(error):",
            new,
            ranks.test_a_function_that_does_not_take_a_rank_is_told_what_it_is_called_with,
        )
        for name, new in (
            ("a function without a rank is told nothing", "if False:"),
            ("each TypeError is taken for one of the call", "if isinstance(error, TypeError):"),
        )
    ),
    fault(
        "a part of a sum is added in the order of the first part",
        "simgpu._ranks.meeting:_reduce_scatter",
        "_prepared(calls, rank), segment=rank",
        "_prepared(calls, rank)",
        reductions.test_a_part_of_a_sum_has_the_bits_that_it_has_in_the_whole,
    ),
    fault(
        "a call that nobody waits for is told of nowhere",
        "simgpu._ranks.meeting:Meetings.check_end",
        "if meeting.error is None",
        "if False",
        ends.test_a_call_that_others_leave_out_is_told_if_nobody_waits,
        raises=BaseException,
    ),
    fault(
        "of messages that nobody takes the last one is named",
        "simgpu._ranks.meeting:Meetings.check_end",
        "waiting[0].call.number, waiting[0],",
        "waiting[-1].call.number, waiting[-1],",
        ends.test_a_message_without_its_other_side_is_told_if_nobody_waits,
    ),
    fault(
        "a message of a group that was aborted is told of",
        "simgpu._ranks.meeting:Meetings.check_end",
        "if waiting and group not in self.aborted:",
        "if waiting:",
        partial(
            ends.test_a_call_of_a_group_that_was_aborted_waits_for_nobody,
            backend="nccl",
            name="isend",
        ),
        raises=BaseException,
    ),
    fault(
        "a message that nobody takes is told of nowhere",
        "simgpu._ranks.meeting:Meetings.check_end",
        "if waiting and",
        "if False and",
        ends.test_a_message_without_its_other_side_is_told_if_nobody_waits,
        raises=BaseException,
    ),
    fault(
        "a rank that ends by sys.exit(0) ends its caller",
        "simgpu._ranks.run:_World._rank",
        "end.code is not None and",
        "True or",
        partial(ends.test_a_rank_ends_by_sys_exit_as_a_process_does, code=0),
        raises=SystemExit,
    ),
    fault(
        "a rank that sends nothing takes no part in an exchange",
        "simgpu._distributed.gloo:Transport._perform",
        '("barrier", "all_to_all")',
        '("barrier",)',
        partial(
            exchanges.test_one_that_has_nothing_to_do_keeps_nobody_waiting,
            rows=[[0, 0, 0], [0, 1, 2], [0, 3, 1]],
        ),
    ),
    fault(
        "a second store of an address waits for nobody",
        "simgpu._ranks.stores:TCPStore._wait_for_others",
        "often >= times",
        "often >= 1",
        groups.test_each_store_of_an_address_waits_for_as_many_of_the_other_ranks,
        raises=BaseException,
    ),
    *(
        fault(name, "simgpu._distributed.restarts:apart", old, new, STORES)
        for name, old, new in (
            ("a store that torchrun does not keep is new for each attempt", "shared and", ""),
            (
                "machines that count their attempts by themselves have stores of their own",
                ' and os.environ.get("GROUP_WORLD_SIZE") == "1"',
                "",
            ),
            (
                "a second store of an attempt has keys of its own",
                'f"restart {attempt}", store',
                'f"restart {attempt} {id(object())} {len(kwargs)}" + os.urandom(4).hex(), store',
            ),
            ("all attempts after the first have the same keys", "restart {attempt}", "restart"),
        )
    ),
    *(
        fault(name, "simgpu._distributed.issue:issue", old, new, POSITIONS)
        for name, old, new in (
            ("tensors of a coalesced call are counted from 0", "start=1", "start=0"),
            (
                "errors do not show which tensor of a coalesced call it is",
                "call.add(f",
                "call.says += (f",
            ),
            (
                "all tensors of a coalesced call are the last one",
                "({position} of",
                "({len(calls)} of",
            ),
        )
    ),
    fault(
        "ranks that cannot go on raise one error, which collects the frames of all",
        "simgpu._ranks.turns:Turns.check",
        "copy.copy(self.stopped)",
        "self.stopped",
        ends.test_the_traceback_of_a_deadlock_is_of_the_rank_that_it_names,
    ),
    fault(
        "a call that all ranks have made is kept",
        "simgpu._ranks.meeting:Transport._meet_all",
        "del self._meetings.calls[key]",
        "pass",
        groups.test_calls_that_are_over_are_forgotten,
        raises=CollectiveMismatchError,
    ),
    *(
        fault(name, where, old, new, left.test_calls_that_fail_keep_no_memory)
        for name, where, old, new in (
            (
                "the error of a call is kept as it was raised",
                "simgpu._distributed.works:Pending._raise",
                "error, self.error = self.error, copy.copy(self.error)",
                "error = self.error",
            ),
            (
                "what a call that has failed was to write is kept",
                "simgpu._distributed.works:Pending.finish",
                "self._landing = []",
                "pass",
            ),
            (
                "what ranks have raised is kept after their world",
                "simgpu._ranks.turns:Turns.forget",
                "self.failures = {}",
                "pass",
            ),
            (
                "the frames of a world that has failed keep each other",
                "simgpu._ranks.run:_World.results",
                "error = None",
                "pass",
            ),
            (
                "calls that were never complete lead to each other after their world",
                "simgpu._ranks.meeting:Meetings.forget",
                "calls, self.calls, mail, self.mail = self.calls, {}, self.mail, {}",
                "calls, mail = self.calls, self.mail",
            ),
            (
                "works that nobody has waited for lead to each other after their world",
                "simgpu._distributed.communicators:let_go",
                "leave_to_outputs(communicator.open)",
                "pass",
            ),
            (
                "calls that were never complete are kept after their world",
                "simgpu._ranks.meeting:Meetings.forget",
                "if not pending.done():",
                "if False:",
            ),
        )
    ),
    *(
        fault(
            name,
            "simgpu._distributed.works:leave_to_outputs",
            "work.live_as_outputs()",
            new,
            left.test_what_a_rank_returns_is_waited_for_after_its_world,
        )
        for name, new in (
            ("what C++ can wait for is gone with its world", "pass"),
            ("what C++ can wait for keeps its outputs", "work._itself = work"),
        )
    ),
    fault(
        "what was sent to nobody goes on after its world",
        "simgpu._ranks.meeting:Meetings.forget",
        ", *mail.values()",
        "",
        left.test_who_waits_for_a_call_after_its_world_is_told_that_it_has_ended,
        raises=RuntimeError,
    ),
    fault(
        "the parts of a coalesced call are kept",
        "simgpu._distributed.works:Work._let_go",
        "waited.issuperset(work._pending)",
        "work is self",
        works.test_a_work_of_several_calls_is_kept_until_it_is_waited_for,
    ),
    fault(
        "what has landed is kept until somebody waits for it",
        "simgpu._distributed.works:drop_unused",
        "if work.over()",
        "if False",
        works.test_a_work_that_is_dropped_keeps_no_memory,
    ),
    fault(
        "what C++ alone holds is dropped",
        "simgpu._native.reference_counts:held_by_cpp",
        "_count(work) > 1",
        "False",
        works.test_what_cpp_alone_holds_is_kept_with_its_outputs,
        raises=Exception,
    ),
    fault(
        "what the program holds is dropped",
        "simgpu._distributed.works:drop_unused",
        "references <= _OF_NOBODY",
        "True",
        works.test_a_work_of_several_calls_is_kept_until_it_is_waited_for,
    ),
    fault(
        "who looks has one reference more",
        "simgpu._distributed.works:_references",
        "for each in list(keep)",
        "for each in list(keep) for other in [each]",
        works.test_references_of_a_program_are_told_from_those_of_a_set,
    ),
    fault(
        "a send keeps all sends before it",
        "simgpu._distributed.works:Pending.finish",
        "self.previous = previous.last_open()",
        "pass",
        works.test_sends_that_nobody_waits_for_are_forgotten,
    ),
    fault(
        "what has nothing to land lets go of those before",
        "simgpu._distributed.works:Pending.last_open",
        "each = each.previous",
        "each = None",
        ranks.test_a_wait_for_the_last_call_is_one_for_those_before,
        raises=Exception,
    ),
    fault(
        "who waits for the device keeps what was dropped",
        "simgpu._distributed.communicators:Communicator.land",
        "drop_unused(self.open)",
        "pass",
        works.test_who_has_waited_keeps_nothing_of_what_was_dropped,
    ),
    fault(
        "who waits for a call keeps what was dropped before",
        "simgpu._distributed.works:Work._land",
        "drop_unused(self._keep)",
        "pass",
        works.test_who_has_waited_keeps_nothing_of_what_was_dropped,
    ),
    fault(
        "who waits for one call of several has waited for all",
        "simgpu._distributed.works:Work._let_go",
        "if waited.issuperset(work._pending)",
        "if not waited.isdisjoint(work._pending)",
        works.test_a_work_of_several_calls_is_kept_until_it_is_waited_for,
    ),
    fault(
        "a fake group gathers nothing",
        "simgpu._distributed.fake:Transport._gather",
        "[call.outs] if call.outs else []",
        "[[out.clone() for out in call.outs]] if call.outs else []",
        fakes("gather"),
    ),
    fault(
        "a rank of a fake group is scattered what is for the first one",
        "simgpu._distributed.fake:Transport._reduce_scatter",
        "[call.ins]",
        "[call.ins[:1] * len(call.ins)]",
        fakes("reduce_scatter"),
    ),
    fault(
        "a fake group that is to fail makes sums",
        "simgpu._distributed.fake:Transport._all_reduce",
        "self._backend.allreduce(call.outs)",
        "pass",
        fakes("all_reduce"),
    ),
    fault(
        "a fake group that is to fail lets ranks meet",
        "simgpu._distributed.fake:Transport._barrier",
        "self._backend.barrier()",
        "pass",
        fakes("barrier"),
    ),
    fault(
        "a call that a fake group refuses is open for ever",
        "simgpu._distributed.fake:Transport.submit",
        "finally:\n        pending.finish()",
        "except ZeroDivisionError:\n        raise\n    pending.finish()",
        fakes("all_reduce"),
    ),
    fault(
        "a fake group sends by splits as without",
        "simgpu._distributed.fake:Transport._all_to_all",
        "if not call.has_splits:",
        "if True:",
        fake.test_splits_leave_on_devices_what_they_leave_on_the_cpu,
    ),
    fault(
        "a fake group takes equal splits for none",
        "simgpu._distributed.moving:alltoall_base_",
        "has_splits=bool(out_splits or in_splits)",
        "has_splits=len({*out_splits, *in_splits}) > 1",
        fake.test_splits_leave_on_devices_what_they_leave_on_the_cpu,
    ),
    fault(
        "what a fake group does not write is anything",
        "simgpu._distributed.communicators:Communicator.submit",
        "if not isinstance(self.transport, fake.Transport):",
        "if True:",
        fakes("recv"),
    ),
]
