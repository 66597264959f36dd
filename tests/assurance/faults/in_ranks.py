"""Mistakes in collectives, and in what belongs to each rank."""

import torch

from tests.support.plant import (
    always,
    argument,
    call_instead,
    constant,
    drop_assignment,
    drop_call,
    drop_operand,
    drop_raise,
    fault,
    instead,
    never,
    operator_instead,
    result,
)

RULE = "test_collectives_match_their_definition_in_threads"
DIFFER = "test_ranks::test_differing_ranks_all_raise"


def from_the_first_rank(stock):
    def broadcast(calls):
        for call in calls:
            for out in call.outs:
                out.copy_(calls[0].ins[0])

    return broadcast


COLLECTIVES = [
    fault(
        "a broadcast is from the first rank",
        "simgpu/_distributed/thread_transport:_move",
        instead(from_the_first_rank),
        RULE,
        case="broadcast",
    ),
    fault(
        "a root gathers in reverse",
        "Call.write",
        argument("zip", 1, lambda values: values[::-1]),
        RULE,
        case="gather",
    ),
    fault(
        "every rank gets the first part",
        "simgpu/_distributed/thread_transport:_move",
        result("enumerate", lambda pairs: [(0, call) for _, call in pairs]),
        RULE,
        case="all_to_all",
    ),
    fault(
        "a reduction is that of the first part",
        "Call.part_for",
        instead(lambda stock: lambda call, rank, count: stock(call, 0, count)),
        RULE,
        case="reduce_scatter",
    ),
    fault(
        "the first rank's bucket is added twice",
        "simgpu/comm:_in_turn",
        constant(1, 0),
        RULE,
        case="all_reduce",
    ),
    fault("a mean is twice as large", "Reduction.prepare", constant(1.0, 2.0), RULE, case="mean"),
    fault(
        "a wait leaves the output as it was",
        "Work._land",
        call_instead("complete", lambda pending, limit: pending.wait_and_raise(limit)),
        RULE,
        case="all_gather",
    ),
    fault(
        "a work that is over has landed nothing",
        "Work.is_completed",
        drop_call("land_what_has_run"),
        "test_a_batch_of_messages_is_there_when_its_work_is_over",
        wait="asked_for",
    ),
    fault(
        "an order of data that is not shuffled may not be repeated",
        "simgpu/_backend/torch_patches/silent_bugs:_note_epoch",
        drop_operand("shuffle"),
        "test_correct_script_is_silent",
    ),
    fault(
        "a wait completes its own call only",
        "Pending._and_before",
        instead(lambda stock: lambda pending: [pending]),
        "test_a_wait_for_the_last_call_is_one_for_those_before",
    ),
    fault(
        "an output without a wait has its old numbers",
        "Pending.copy_inputs",
        drop_call("fill_unwritten"),
        "test_a_read_before_the_wait_sees_no_number",
    ),
    fault(
        "a call that failed writes its output",
        "Pending.finish",
        drop_assignment("_landing"),
        "test_a_call_that_fails_lands_nothing_and_keeps_nothing_from_landing",
    ),
    fault(
        "a call overwrites what it has not read",
        "Communicator.submit",
        drop_call("clone_overlapping_inputs"),
        "test_a_call_reads_what_it_overwrites_before",
    ),
    fault(
        "calls in other orders are carried out",
        "simgpu/_distributed/agreement:check_agreement",
        always(1),
        DIFFER,
        seed=None,
        raises=Exception,
    ),
    fault(
        "splits that do not fit are carried out",
        "ThreadTransport._check",
        never("all_to_all"),
        DIFFER,
        seed=None,
        raises=Exception,
    ),
    fault(
        "two ranks have one device",
        "simgpu/_distributed:_check_devices",
        never(1),
        "test_ranks_change_devices_together_or_raise",
    ),
    fault(
        "tensors with gaps are sent",
        "simgpu/_distributed/c10d_kernels:_order",
        drop_raise(1),
        "test_tensors_with_gaps_are_refused",
    ),
    fault(
        "NCCL reduces bits",
        "check_reduction",
        never("nccl"),
        "test_unreducible_dtype_is_refused",
        backend="nccl",
        dtype=torch.int32,
        op="BOR",
        error=ValueError,
        text="Cannot use ReduceOp.BOR with NCCL",
    ),
    fault(
        "NCCL looks at tags",
        "_between_two",
        never("nccl"),
        "test_ranks_that_are_threads_pair_messages_as_the_backend_does",
    ),
    fault(
        "channels_last is sent by dimensions",
        "simgpu/_distributed:host_aliases",
        call_instead("permute", lambda alias, order: alias),
        "test_flat_outputs_follow_the_order_of_memory",
        name="all_gather_into_tensor",
    ),
    fault(
        "a group that has ended makes calls",
        "Communicator.submit",
        never("ended"),
        "test_a_group_that_has_ended_makes_no_calls",
        raises=BaseException,
    ),
    fault(
        "a rank writes where others still read",
        "SharedMemory.write",
        operator_instead("-", "*"),
        "test_ranks_read_what_was_written_for_their_call",
    ),
]

NUMPY = "test_numpy_generator_of_a_rank_continues"
SEEDED = "test_a_seed_gives_the_same_order_and_numbers"
SLOTS = "simgpu/_ranks/rank_state:_slots"


def without(writes):
    """The table of what belongs to a rank lacks what is written by a function of this name."""
    return instead(
        lambda stock: lambda: (slot for slot in stock() if writes not in repr(slot.write))
    )


RANKS = [
    fault("ranks share PyTorch's generator", SLOTS, without("set_state"), SEEDED),
    fault("ranks share Python's generator", SLOTS, without("Random.setstate"), SEEDED),
    fault("ranks share NumPy's generator", SLOTS, without("_write_numpy"), NUMPY),
    fault("a number that NumPy keeps is lost", "_write_numpy", drop_call("_briefly"), NUMPY),
    fault(
        "a rank has the environment of another",
        SLOTS,
        without("_write_item"),
        "test_each_rank_knows_itself",
        raises=Exception,
    ),
    fault(
        "a rank runs code that another one compiled",
        "simgpu/_ranks/rank_state:_with_code_of_rank",
        always(1),
        "test_a_rank_runs_what_was_compiled_for_it",
    ),
    fault(
        "the caller keeps variables of a rank",
        "_write_item",
        drop_call("pop"),
        "test_orders_of_ranks::test_nothing_is_left_behind",
    ),
    fault(
        "a call is done before the last rank has come",
        "ThreadTransport._meet_all",
        operator_instead("==", "<="),
        "test_a_rank_that_leaves_early_is_a_deadlock",
        raises=BaseException,
    ),
    fault(
        "a store of a rank waits for no other ranks",
        "TCPStore._wait_for_others",
        instead(lambda stock: lambda *args: None),
        "test_a_group_that_others_do_not_make_is_a_deadlock",
        how={},
        text="rank 0 waits for 2 ranks at the store tcp://localhost:0; rank 1 has ended",
    ),
    fault(
        "calls of one default group meet those of the next",
        "simgpu:life",
        instead(lambda stock: lambda: 1),
        "test_default_groups_follow_each_other",
    ),
]

IN_RANKS = [*COLLECTIVES, *RANKS]
