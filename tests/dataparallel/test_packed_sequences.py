"""PackedSequences cut and joined: the order of the sequences, and whether they carry an order.

A packed sequence that was given in order has no indices (`enforce_sorted=True`), and programs that
are compiled or exported depend on it.
"""

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

import dataparallel
from tests.support import strategies
from tests.support.chunk_rule import chunk_sizes
from tests.support.observe import plain

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def sequences(lengths, first=0):
    return [torch.full((n, 2), float(first + k)) for k, n in enumerate(lengths)]


def packed(lengths, device, ordered, first=0):
    lengths = sorted(lengths, reverse=True) if ordered else lengths
    return pack_sequence(sequences(lengths, first), enforce_sorted=ordered).to(device)


def check_indices(pack: PackedSequence, device: torch.device) -> None:
    """The two index tensors are each other's inverse, on the device of the data."""
    assert pack.data.device == device
    assert pack.batch_sizes.device == torch.device("cpu")
    if pack.sorted_indices is None:
        assert pack.unsorted_indices is None
        return
    assert pack.sorted_indices.device == pack.unsorted_indices.device == device
    back = pack.sorted_indices[pack.unsorted_indices]
    assert plain(back) == list(range(len(back)))


@given(data=st.data(), lengths=LENGTHS, ordered=st.booleans(), on_cpu=st.booleans())
@example(data=None, lengths=[3, 2, 1], ordered=True, on_cpu=True)
def test_chunks_have_indices_like_the_whole(devices, data, lengths, ordered, on_cpu):
    targets = data.draw(strategies.device_lists(devices)) if data else devices[:1]
    whole = packed(lengths, torch.device("cpu") if on_cpu else targets[0], ordered)
    chunks = dataparallel.scatter(whole, targets)
    given_order = unpack_sequence(whole)
    sizes = chunk_sizes(len(lengths), len(targets))
    assert len(chunks) == len(sizes)
    for chunk, target, size in zip(chunks, targets, sizes, strict=False):
        assert (chunk.sorted_indices is None) == ordered
        check_indices(chunk, target)
        mine, given_order = given_order[:size], given_order[size:]
        assert [plain(each) for each in unpack_sequence(chunk)] == [plain(each) for each in mine]


@given(data=st.data(), parts=st.lists(st.tuples(LENGTHS, st.booleans()), min_size=1, max_size=4))
@example(data=None, parts=[([2, 1], True), ([4, 3], True)])
@example(data=None, parts=[([4, 3], True), ([3, 1], True)])
@example(data=None, parts=[([3, 2], False)])
@example(data=None, parts=[([3, 2], False), ([2, 1], False)])
def test_joined_sequences_come_in_replica_order(devices, data, parts):
    """Whatever their lengths: where these are not in order, the whole says what the order was."""
    targets = data.draw(strategies.device_lists(devices, min_size=len(parts))) if data else devices
    parts = parts[: len(targets)]
    chunks = [
        packed(lengths, target, ordered, first=10 * k)
        for k, ((lengths, ordered), target) in enumerate(zip(parts, targets, strict=False))
    ]
    wanted = data.draw(st.sampled_from([*targets, torch.device("cpu")])) if data else targets[0]
    whole = dataparallel.gather(chunks, wanted)
    expected = [plain(each) for chunk in chunks for each in unpack_sequence(chunk)]
    assert [plain(each) for each in unpack_sequence(whole)] == expected
    check_indices(whole, wanted)
    lengths = [len(each) for each in expected]
    in_order = lengths == sorted(lengths, reverse=True)
    # A shuffled one stays so if it happens to be in order: the next step may unpack it by indices.
    assert (whole.sorted_indices is None) == (in_order and all(ordered for _, ordered in parts))


@given(data=st.data(), lengths=LENGTHS, ordered=st.booleans())
def test_a_default_device_changes_nothing(devices, data, lengths, ordered):
    """Neither where the sizes of the steps are, which is the CPU, nor where the data go."""
    targets = data.draw(strategies.device_lists(devices))
    given_pack = packed(lengths, targets[0], ordered)
    with torch.device(data.draw(st.sampled_from(devices))):
        chunks = dataparallel.scatter(given_pack, targets)
        whole = dataparallel.gather(chunks, targets[-1])
    for chunk, target in zip(chunks, targets, strict=False):
        check_indices(chunk, target)
    check_indices(whole, targets[-1])
