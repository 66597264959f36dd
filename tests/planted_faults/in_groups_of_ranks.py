"""Faults planted in how groups of ranks are made and split, and in how processes meet in them."""

from functools import partial

from simgpu.errors import DeadlockError
from tests.distributed import test_groups_of_ranks as groups
from tests.distributed import test_processes as processes
from tests.distributed import test_ranks as ranks
from tests.distributed import test_transport as transport
from tests.support.plant import fault

AGAIN = groups.test_default_groups_follow_each_other
ALONE = partial(
    groups.test_a_group_that_others_do_not_make_is_a_deadlock,
    how={},
    text="rank 0 waits for 2 ranks at the store tcp://localhost:0; rank 1 has ended",
)

GROUPS_OF_RANKS = [
    fault(
        "groups of other ranks that have one name meet each other",
        "simgpu._ranks.meeting:Transport.__init__",
        "(thread_groups.life(), group, tuple(ranks))",
        "(thread_groups.life(), group)",
        groups.test_groups_of_other_ranks_that_have_one_name_do_not_meet,
        raises=DeadlockError,
    ),
    *(
        fault(
            name,
            f"simgpu._distributed.losses:Losses.{where}",
            old,
            new,
            processes.test_who_has_gone_first_is_told_from_those_that_have_followed,
        )
        for name, where, old, new in (
            (
                "who has followed a rank that has gone passes for one that went first",
                "_described",
                " if member not in notes",
                "",
            ),
            (
                "a rank takes itself for one that has gone",
                "_has_gone",
                "member == self._backend.rank()",
                "False",
            ),
            (
                "a rank that has lost another one goes without a note",
                "failure",
                'self.note(f"in {call.shown} at {call.place}, {lost}")',
                "pass",
            ),
            (
                "a rank finds what it wrote for an earlier group of this name",
                "__init__",
                "store.delete_key(_key(ranks[backend.rank()]))",
                "pass",
            ),
            (
                "a rank that has gone is told by its place in the group",
                "_told_of",
                "rank {self._ranks[member]} has",
                "rank {member} has",
            ),
        )
    ),
    *(
        fault(
            name,
            where,
            old,
            new,
            transport.test_a_rank_that_fails_by_itself_says_so_in_the_store_of_its_group,
            raises=Exception,
        )
        for name, where, old, new in (
            (
                "a rank that fails by itself goes without a note",
                "simgpu._distributed.gloo:Transport._do",
                'self._losses.note(f"{call.shown} at {call.place}, {what}")',
                "pass",
            ),
            (
                "ranks of a group have no store to leave notes in",
                "simgpu._distributed.communicators:Communicator._carried_by",
                "self.ranks, store)",
                "self.ranks, None)",
            ),
        )
    ),
    fault(
        "a rank that is late passes for one that has ended",
        "simgpu._distributed.losses:Losses.failure",
        '"imed out" in str(error)',
        '"timed_out" in str(error)',
        transport.test_a_rank_that_does_not_come_in_time_is_told_from_one_that_has_ended,
    ),
    *(
        fault(
            name,
            where,
            old,
            "pass",
            transport.test_a_group_is_there_when_all_its_ranks_have_connected,
            **named,
        )
        for name, where, old, named in (
            (
                "a rank may leave before others have connected",
                "simgpu._distributed.nccl:meet",
                "backend.barrier().wait()",
                {"raises": BaseException},
            ),
            (
                "nobody waits until all ranks of a new group have connected",
                "simgpu._distributed.nccl:ProcessGroupNCCL.__init__",
                "meet(self)",
                {},
            ),
            (
                "nobody waits until all ranks of a split group have connected",
                "simgpu._cuda.process_groups:_split_group",
                "nccl.meet(backend)",
                {},
            ),
        )
    ),
    fault(
        "what this rank cannot compute passes for a rank that has ended",
        "simgpu._distributed.gloo:Transport._do",
        "except (_GlooError, TimeoutError) as raised:",
        "except Exception as raised:",
        partial(transport.test_what_fails_on_this_rank_is_told_as_it_is, error=RuntimeError("no")),
    ),
    fault(
        "a group goes on after a call in which others may still wait for this rank",
        "simgpu._distributed.gloo:Transport._do",
        'self._failure = RankLostError(f"call {call.number} has failed on this rank ({what})")',
        "pass",
        partial(transport.test_what_fails_on_this_rank_is_told_as_it_is, error=RuntimeError("no")),
    ),
    fault(
        "a part of a group writes in the options of the whole",
        "simgpu._distributed.splitting:options_of_parts",
        "copied(_options_of(backends[0]))",
        "_options_of(backends[0])",
        processes.test_parts_of_a_group_change_nothing_of_the_whole,
    ),
    fault(
        "parts of a group are looked for in a list that nobody has filled",
        "simgpu._distributed.splitting:options_of_parts",
        "_options_of(backend).global_ranks_in_group = list(ranks)",
        "pass",
        processes.test_parts_of_a_group_change_nothing_of_the_whole,
    ),
    fault(
        "parts of parts forget their timeout",
        "simgpu._distributed.splitting:copied",
        '"_timeout", ',
        "",
        processes.test_parts_of_a_group_change_nothing_of_the_whole,
    ),
    fault(
        "the second part of the same ranks finds the first one",
        "simgpu._distributed.splitting:meeting_point",
        "times[members] += 1",
        "times[members] = 1",
        processes.test_the_parts_of_a_group_meet_where_no_others_do,
    ),
    fault(
        "parts meet by the name that each rank has for the whole",
        "simgpu._distributed.splitting:meeting_point",
        "agreed_name(whole)}:",
        "whole.group_name}:",
        processes.test_the_parts_of_a_group_meet_where_no_others_do,
    ),
    fault(
        "calls that nobody met are met by those of the next default group",
        "simgpu._ranks.thread_groups:life",
        "groups.lives",
        "1",
        AGAIN,
    ),
    fault(
        "the keys of a store outlive the groups that it was made for",
        "simgpu._ranks.stores:TCPStore.__init__",
        "{thread_groups.life()} tcp",
        "tcp",
        AGAIN,
    ),
    fault(
        "a store of a rank waits for no other ranks",
        "simgpu._ranks.stores:TCPStore._wait_for_others",
        ">= wanted",
        ">= 0",
        ALONE,
    ),
    fault(
        "ranks that torchrun starts again read what the last ones wrote",
        "simgpu._distributed.restarts:apart",
        'if shared and attempt != "0"',
        'if False and attempt != "0"',
        processes.test_ranks_that_are_started_again_do_not_read_what_the_last_ones_wrote,
    ),
    fault(
        "data that ride with an agreement are those of one rank",
        "simgpu._distributed.gloo:Transport._finish",
        "call.reduction.combine(parts)",
        "parts[0]",
        transport.test_calls_that_come_again_are_what_they_were,
    ),
    fault(
        "a group that has ended makes calls",
        "simgpu._distributed.communicators:Communicator.submit",
        "if self.ended:",
        "if False:",
        ranks.test_a_group_that_has_ended_makes_no_calls,
        raises=BaseException,
    ),
]
