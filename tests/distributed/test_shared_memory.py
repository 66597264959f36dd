"""Memory that processes of one machine share: who may write when, and what is left behind."""

import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._distributed import process_transport
from simgpu._distributed.process_transport import SharedMemory
from tests.support.threads import together
from tests.support.worlds import few


def shared(count, nbytes):
    """What each of `count` ranks has of the memory that they share."""
    waiting, reported = threading.Barrier(count), [None] * count

    def run(rank):
        def exchange(tensor):
            reported[rank] = tensor.clone()
            waiting.wait()
            everything = list(reported)
            waiting.wait()
            return everything

        return process_transport.share(nbytes, rank, exchange)

    return together(count, run)


@few
@given(
    count=st.integers(1, 4),
    nbytes=st.integers(1, 5000),
    calls=st.integers(1, 5),
    data=st.data(),
)
def test_ranks_read_the_bytes_of_their_call(count, nbytes, calls, data):
    """In any order in which a rank writes for the next call while others still read this one."""
    ranks = shared(count, nbytes)
    written, read = [0] * count, [0] * count
    while min(read) < calls:
        able = [
            rank for rank in range(count) if read[rank] < calls and may_go_on(rank, written, read)
        ]
        rank = data.draw(st.sampled_from(able))
        if written[rank] == read[rank]:
            mine = ranks[rank].write()
            assert len(mine) == nbytes == ranks[rank].nbytes
            mine.fill_(10 * written[rank] + rank)
            written[rank] += 1
            continue
        for other, part in enumerate(ranks[rank].read()):
            assert part.eq(10 * read[rank] + other).all()
        read[rank] += 1


def may_go_on(rank, written, read):
    """A rank writes when it has read, and reads when all have written for its call."""
    return written[rank] == read[rank] or min(written) >= written[rank]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_no_file_is_left(tmp_path, monkeypatch, in_memory, ends):
    """Where the system keeps files in memory or not, and where another rank has ended."""
    monkeypatch.setattr(process_transport, "_IN_MEMORY", tmp_path / ("" if in_memory else "none"))
    monkeypatch.setattr(process_transport.tempfile, "tempdir", str(tmp_path))

    def exchange(tensor):
        assert len(list(tmp_path.iterdir())) == 1, "the others map it in between"
        if ends:
            raise RuntimeError("Connection closed by peer")
        return [tensor]

    if ends:
        with pytest.raises(RuntimeError, match="closed by peer"):
            process_transport.share(100, 0, exchange)
    else:
        assert isinstance(process_transport.share(100, 0, exchange), SharedMemory)
    assert list(tmp_path.iterdir()) == []


def test_full_memory_is_not_shared(tmp_path, monkeypatch):
    """Not found out by touching it, which would end the process."""
    monkeypatch.setattr(process_transport, "_IN_MEMORY", tmp_path)
    make, reported = process_transport.tempfile.NamedTemporaryFile, []

    def file_without_room(**named):
        file = make(**named)
        monkeypatch.setattr(file, "write", mock.Mock(side_effect=OSError(28, "No space left")))
        return file

    monkeypatch.setattr(process_transport.tempfile, "NamedTemporaryFile", file_without_room)
    assert process_transport.share(100, 0, lambda sent: reported.append(sent) or [sent]) is None
    assert reported[0].count_nonzero() == 0, "it has no file"
    assert list(tmp_path.iterdir()) == []


@given(names=st.lists(st.sampled_from(["", "/nowhere/simgpu-1", "short"]), min_size=1, max_size=3))
def test_missing_or_short_file_is_not_mapped(names):
    """As of a rank on another machine, where there may be a file of this name."""
    with process_transport._file(10) as short, process_transport._file(200) as whole:
        paths = [short if name == "short" else name for name in names]

        def tell(tensor):
            if tensor.dtype is not torch.uint8:
                return [tensor]
            return [process_transport._padded(path) for path in [whole, *paths]]

        assert process_transport.share(100, 0, tell) is None
        assert Path(whole).stat().st_size == 200


@given(others=st.lists(st.booleans(), max_size=3))
def test_memory_is_shared_where_all_ranks_have_mapped_all_of_it(others):
    def tell(tensor):
        rest = map(torch.tensor, others) if tensor.dtype is torch.bool else []
        return [tensor, *(each.view(1) for each in rest)]

    memory = process_transport.share(100, 0, tell)
    assert (memory is not None) == all(others)
