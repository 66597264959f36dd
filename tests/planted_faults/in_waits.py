"""Each synchronisation of `dataparallel` taken out: what the laziest order of streams shows.

`test_every_wait.py` finds the synchronisations in the source, and asks that each has a line here.
"""

from functools import partial

from tests.simulator.asynchronous import test_data_parallel as data_parallel
from tests.simulator.asynchronous import test_results_on_the_host as host
from tests.support.plant import fault

COPIES = "dataparallel._transfer.copies"

there = host.test_what_comes_to_the_host_is_there

WAITS = [
    fault(
        "the caller's stream does not wait for the copies of chunks",
        "dataparallel._transfer.autograd:scatter_split",
        "main.wait_stream(stream)",
        "pass",
        data_parallel.test_chunks_of_the_host_arrive_in_the_laziest_order,
    ),
    fault(
        "the memory of chunks does not wait for the caller's stream",
        "dataparallel._transfer.autograd:scatter_split",
        "output.record_stream(main)",
        "pass",
        data_parallel.test_chunks_of_the_host_arrive_in_the_laziest_order,
    ),
    fault(
        "gradients of replicas on devices alone come to the host while it goes on",
        "dataparallel._transfer.autograd:_sum",
        "non_blocking=first != CPU",
        "non_blocking=True",
        partial(there, name="gradients_of_other_replicas"),
    ),
    fault(
        "copies for all come to the host while it goes on",
        f"{COPIES}:broadcast_to",
        "non_blocking=device != CPU",
        "non_blocking=True",
        partial(there, name="broadcast"),
    ),
    fault(
        "chunks are read on the host before they are there",
        f"{COPIES}:scatter_chunks",
        "non_blocking=device != CPU))\n            continue",
        "non_blocking=True))\n            continue",
        partial(there, name="scatter"),
    ),
    fault(
        "chunks on a stream of the host are read before they are there",
        f"{COPIES}:scatter_chunks",
        "))\n    return tuple(moved)",
        " or True))\n    return tuple(moved)",
        partial(there, name="scatter_on_a_stream_of_the_host"),
    ),
    fault(
        "outputs are joined on the host before they are there",
        f"{COPIES}:gather_checked",
        "non_blocking=device != CPU",
        "non_blocking=True",
        partial(there, name="gather"),
    ),
    fault(
        "outputs come into pinned memory while the host goes on",
        f"{COPIES}:write_chunks",
        "non_blocking = result.device != CPU",
        "non_blocking = True",
        partial(there, name="gather_into_pinned_memory"),
    ),
    fault(
        "the host adds what is on its way",
        "dataparallel._transfer.sums:sum_to",
        "non_blocking = device != CPU",
        "non_blocking = True",
        partial(there, name="reduce_add"),
    ),
    fault(
        "what is not cut comes to the host while it goes on",
        "dataparallel.scatter_gather:_scatter_leaf",
        "non_blocking=device != CPU",
        "non_blocking=True",
        partial(there, name="scatter_what_is_not_cut"),
    ),
    fault(
        "packed sequences come to the host while it goes on",
        "dataparallel._structure.packed_sequences:split",
        "non_blocking=device != CPU",
        "non_blocking=True",
        partial(there, name="scatter_packed_sequences"),
    ),
]
