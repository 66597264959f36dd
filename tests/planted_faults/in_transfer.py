"""Faults planted in `dataparallel._transfer`: which stream waits for which."""

from tests.simulator import test_stream_records as records
from tests.support.plant import fault

TRANSFER = [
    fault(
        "the stream in the background waits for the caller's",
        "dataparallel._transfer.autograd:scatter_split",
        "main.wait_stream(stream)",
        "stream.wait_stream(main)",
        records.test_chunks_of_the_host_are_awaited_where_they_are_used,
    ),
    fault(
        "memory of a chunk belongs to the stream in the background alone",
        "dataparallel._transfer.autograd:scatter_split",
        "output.record_stream(main)",
        "output.record_stream(stream)",
        records.test_chunks_of_the_host_are_awaited_where_they_are_used,
    ),
]
