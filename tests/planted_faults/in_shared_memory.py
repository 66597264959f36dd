"""Faults planted in the memory that ranks on one machine share, and in what they write there."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.distributed import test_records as records
from tests.distributed import test_shared_memory as shared
from tests.distributed import test_transport as transport
from tests.support.plant import fault

SHARE = "simgpu._distributed.shared_memory"
RECORD = "simgpu._distributed.records:_record"
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


def no_folder_in_memory() -> None:
    """The property, in a folder of its own."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        shared.test_a_system_that_keeps_no_files_in_memory_shares_those_that_it_has(
            Path(name), patch
        )


IN_SHARED_MEMORY = [
    fault(
        "a system that keeps no files in memory shares none",
        f"{SHARE}:_file",
        "_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None",
        "_IN_MEMORY",
        no_folder_in_memory,
    ),
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
        "ranks ask in each call for memory that they did not get",
        "simgpu._distributed.gloo:Transport._has_room",
        "if nbytes > self._asked:",
        "if self._memory is None or nbytes > self._memory.nbytes:",
        CALLS,
    ),
    fault(
        "before any memory is shared, instruments are told that none will be",
        "simgpu._distributed.gloo:Transport._most",
        "self._asked and self._memory is None",
        "self._memory is None",
        transport.test_a_sum_is_carried_out_as_instruments_are_told,
    ),
    fault(
        "a record grows with what there is to say",
        RECORD,
        "told[: room - len(where)]",
        "told[:room]",
        records.test_a_record_has_one_size_and_ends_its_texts,
    ),
    fault(
        "calls are alike that begin alike",
        RECORD,
        "hashlib.blake2b(says.encode(), digest_size",
        "hashlib.blake2b(says.encode()[:400], digest_size",
        records.test_calls_are_alike_that_say_the_same_to_the_end,
    ),
    fault(
        "where no more memory can be shared, none is",
        "simgpu._distributed.gloo:Transport._has_room",
        " or self._memory",
        "",
        CALLS,
    ),
]
