"""Faults planted in the memory that ranks on one machine share."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.distributed import test_shared_memory as shared
from tests.distributed import test_transport as transport
from tests.support.plant import fault

SHARE = "simgpu._distributed.shared_memory"
CALLS = transport.test_calls_that_come_again_are_what_they_were


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder of its own in the place of the system's."""
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(shared.shared_memory, "_IN_MEMORY", Path(name)),
    ):
        yield Path(name)


def no_file_is_left() -> None:
    """The property, in a folder of its own."""
    with folder() as path:
        shared.test_no_file_is_left(path)


def no_room() -> None:
    """The property, in a folder of its own."""
    with folder() as path:
        shared.test_where_there_is_no_room_nothing_is_shared(path)


IN_SHARED_MEMORY = [
    fault(
        "a rank writes where others still read",
        f"{SHARE}:SharedMemory.write",
        "1 - self._turn",
        "0",
        shared.test_ranks_read_what_was_written_for_their_call,
    ),
    fault(
        "a rank on another machine is taken for one on this one",
        f"{SHARE}:share",
        "len(parts) == len(names)",
        "bool(parts)",
        shared.test_a_file_that_is_not_there_or_too_short_is_not_mapped,
    ),
    fault(
        "ranks share memory that others do not see",
        f"{SHARE}:share",
        "all(map(bool, tell(torch.tensor([len(parts) == len(names)]))))",
        "bool(tell(torch.tensor([len(parts) == len(names)]))[0])",
        shared.test_memory_is_shared_where_all_ranks_have_mapped_all_of_it,
    ),
    fault(
        "a file of shared memory is left",
        f"{SHARE}:_file",
        "dir=folder",
        "dir=folder, delete=False",
        no_file_is_left,
    ),
    fault(
        "memory is promised only, and ends the process where there is none",
        f"{SHARE}:_file",
        "file.write(bytes(size))",
        "file.truncate(size)",
        no_room,
    ),
    fault(
        "a file that is too short is made longer",
        f"{SHARE}:_mapped",
        "os.stat(name).st_size != size",
        "not os.path.exists(name)",
        shared.test_a_file_that_is_not_there_or_too_short_is_not_mapped,
    ),
    fault(
        "data are not written where they have room",
        "simgpu._distributed.gloo:Transport._tell_in_memory",
        "data is not None and",
        "False and",
        CALLS,
    ),
    fault(
        "ranks do not wait for what others write",
        "simgpu._distributed.gloo:Transport._tell_in_memory",
        "self._run(self._backend.barrier)",
        "pass",
        CALLS,
        raises=BaseException,
    ),
    fault(
        "where no more memory can be shared, none is",
        "simgpu._distributed.gloo:Transport._has_room",
        " or self._memory",
        "",
        CALLS,
    ),
]
