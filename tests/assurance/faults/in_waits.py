"""Each synchronisation of `dataparallel` left out: what the lazy order of streams shows.

`test_faults.py` finds the synchronisations in the source, and checks that each has a row here.
"""

from tests.support.plant import argument, drop_call, fault, operator_instead

LAZY = "test_chunks_of_the_host_arrive_in_the_laziest_order"
HOST = "test_results_on_the_host::test_tensors_on_the_host_are_complete"

WAITS = [
    fault(
        "the caller's stream does not wait for the copies of chunks",
        "scatter_split",
        drop_call("wait_stream"),
        LAZY,
    ),
    fault(
        "the memory of chunks does not wait for the caller's stream",
        "scatter_split",
        drop_call("record_stream"),
        LAZY,
    ),
    fault(
        "gradients of other replicas come to the host without a wait",
        "dataparallel:_sum",
        argument("to", "non_blocking", True),
        HOST,
        name="gradients_of_other_replicas",
    ),
    fault(
        "copies for all come to the host without a wait",
        "broadcast_to",
        argument("to", "non_blocking", True),
        HOST,
        name="broadcast",
    ),
    fault(
        "chunks come to the host without a wait",
        "scatter_chunks",
        argument("to", "non_blocking", True, at=1),
        HOST,
        name="scatter",
    ),
    fault(
        "chunks on a stream of the host come without a wait",
        "scatter_chunks",
        argument("to", "non_blocking", True, at=2),
        HOST,
        name="scatter_on_a_stream_of_the_host",
    ),
    fault(
        "joined outputs come to the host without a wait",
        "gather_checked",
        argument("to", "non_blocking", True),
        HOST,
        name="gather",
    ),
    fault(
        "outputs come into pinned memory without a wait",
        "write_chunks",
        operator_instead("!=", "is not"),
        HOST,
        name="gather_into_pinned_memory",
    ),
    fault(
        "the host adds what has not arrived",
        "sum_to",
        operator_instead("!=", "is not", at=2),
        HOST,
        name="reduce_add",
    ),
    fault(
        "what is not cut comes to the host without a wait",
        "move_to_each",
        argument("to", "non_blocking", True),
        HOST,
        name="scatter_what_is_not_cut",
    ),
    fault(
        "packed sequences come to the host without a wait",
        "dataparallel:split",
        argument("to", "non_blocking", True),
        HOST,
        name="scatter_packed_sequences",
    ),
]
