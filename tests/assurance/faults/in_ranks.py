"""Mistakes in collectives, and in what belongs to each rank."""

from tests.support.plant import (
    argument,
    call_instead,
    fault,
    instead,
)

RULE = "test_collectives_match_their_definition_in_threads"


def from_the_first_rank(stock):
    def broadcast(calls):
        for call in calls:
            for out in call.outs:
                out.copy_(calls[0].ins[0])

    return broadcast


COLLECTIVES = [
    fault(
        "a broadcast is from the first rank",
        "simgpu/_distributed:_move",
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
        "simgpu/_distributed:_move",
        call_instead("enumerate", lambda calls: [(0, call) for call in calls]),
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
        "a wait leaves the output as it was",
        "Work._land",
        call_instead("complete", lambda pending, limit: pending.wait_and_raise(limit)),
        RULE,
        case="all_gather",
    ),
    fault(
        "a wait completes its own call only",
        "Pending._and_before",
        instead(lambda stock: lambda pending: [pending]),
        "test_wait_for_the_last_call_completes_those_before",
    ),
    fault(
        "channels_last is sent by dimensions",
        "simgpu/_distributed:host_aliases",
        call_instead("permute", lambda alias, order: alias),
        "test_flat_outputs_follow_the_order_of_memory",
        name="all_gather_into_tensor",
    ),
]

NUMPY = "test_numpy_generator_of_a_rank_continues"
SEEDED = "test_a_seed_gives_the_same_order_and_numbers"
SLOTS = "simgpu/_ranks:_slots"


def without(writes):
    """The table of what belongs to a rank lacks what is written by a function of this name."""
    return instead(
        lambda stock: lambda: (slot for slot in stock() if writes not in repr(slot.write))
    )


RANKS = [
    fault("ranks share PyTorch's generator", SLOTS, without("set_state"), SEEDED),
    fault("ranks share Python's generator", SLOTS, without("Random.setstate"), SEEDED),
    fault("ranks share NumPy's generator", SLOTS, without("_write_numpy"), NUMPY),
    fault(
        "a rank has the environment of another",
        SLOTS,
        without("_write_item"),
        "test_each_rank_knows_itself",
        raises=Exception,
    ),
    fault(
        "a store of a rank waits for no other ranks",
        "TCPStore._wait_for_others",
        instead(lambda stock: lambda *args: None),
        "test_group_made_by_one_rank_is_a_deadlock",
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
