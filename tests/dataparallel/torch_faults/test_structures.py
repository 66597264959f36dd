"""Faults 5, 7, 9, 17 and 18: what goes into replicas and what comes out of them."""

import dataclasses
import warnings
from collections import Counter, defaultdict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from dataparallel._structure import scalar_warning
from tests.dataparallel.torch_faults.sides import BOTH, OURS, THEIRS, parallel, reported, rows
from tests.support import strategies
from tests.support.observe import plain


@dataclasses.dataclass
class Batch:
    """What a collate function returns."""

    x: torch.Tensor
    name: str = "train"


@pytest.mark.devices(4)
def test_fault_05_dataclasses_are_shared_and_not_cut(devices):
    """Theirs gives every replica the whole batch, where it was; ours cuts what is inside."""
    assert reported(THEIRS, devices, lambda r, x, batch: len(batch.x), rows(8), Batch(rows(8))) == (
        [8, 8, 8, 8]
    )
    assert reported(OURS, devices, lambda r, x, batch: len(batch.x), rows(8), Batch(rows(8))) == (
        [2, 2, 2, 2]
    )


@pytest.mark.devices(4)
def test_fault_05_outputs_that_are_no_tensors(devices):
    """Numbers and dataclasses raise in theirs, and a string becomes the text of a map object."""
    for value in (3, Batch(rows(2))):
        with pytest.raises(TypeError, match="is not iterable"):
            parallel(THEIRS, devices, lambda replica, x, value=value: value)(rows(8))
    assert "map object" in parallel(THEIRS, devices, lambda replica, x: "text")(rows(8))
    for value in (3, "text", 2.5, True):
        assert parallel(OURS, devices, lambda replica, x, value=value: value)(rows(8)) == value
    out = parallel(OURS, devices, lambda replica, x: Batch(x))(rows(8))
    assert type(out) is Batch
    assert plain(out.x) == plain(rows(8))


@pytest.mark.devices(4)
def test_fault_05_what_differs_becomes_a_list_in_replica_order(devices):
    out = parallel(OURS, devices, lambda replica, x: {"first": int(x[0, 0])})(rows(8))
    assert out == {"first": [0, 4, 8, 12]}


@pytest.mark.devices(4)
def test_fault_07_a_loss_without_dimensions_warns_at_each_step(devices, monkeypatch):
    """The vector is what hardware does; ours says so once and not at every step."""
    monkeypatch.setattr(scalar_warning, "_warned_lines", set())  # this may not be the first run
    found = []
    for side in BOTH:
        model = parallel(side, devices, lambda replica, x: (x * replica.weight).sum())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            losses = [model(rows(count)) for count in (8, 8, 3)]
        assert [len(loss) for loss in losses] == [4, 4, 3]
        found.append(len(caught))
    assert found == [3, 1]


@pytest.mark.devices(4)
def test_fault_09_outputs_on_the_cpu(devices):
    with pytest.raises(AssertionError, match="not implemented for CPU tensors"):
        parallel(THEIRS, devices, lambda replica, x: x.cpu())(rows(8))
    with pytest.raises(ValueError, match="Expected a non cpu device"):
        parallel(THEIRS, devices, lambda replica, x: x, output_device=torch.device("cpu"))(rows(8))
    out = parallel(OURS, devices, lambda replica, x: x.cpu())(rows(8))
    assert out.device == devices[0]
    assert plain(out) == plain(rows(8))


@pytest.mark.devices(2, at_least=True)
@given(data=st.data(), there=st.booleans(), wanted=st.sampled_from((None, "cpu")))
def test_fault_09_gradients_come_back_from_the_cpu(devices, data, there, wanted):
    """Outputs made on the CPU, or wanted there, are differentiable all the way."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    batch = data.draw(strategies.batches(len(targets), 20, min_size=1))

    def forward(replica, x):
        out = x * replica.weight
        return out.cpu() if there else out

    model = parallel(OURS, targets, forward, output_device=wanted)
    out = model(rows(batch))
    assert out.device == (targets[0] if wanted is None else torch.device(wanted))
    out.sum().backward()
    assert plain(model.module.weight.grad) == plain(rows(batch).sum(0))


def sequences(lengths):
    return [torch.arange(float(2 * n)).view(n, 2) + 100 * index for index, n in enumerate(lengths)]


@pytest.mark.devices(4)
def test_fault_17_packed_sequences_are_cut_by_row(devices):
    packed = pack_sequence(sequences([3, 1, 2, 4, 2]), enforce_sorted=False)
    with pytest.raises(ValueError, match="batch_sizes should always be on CPU"):
        parallel(THEIRS, devices, lambda replica, p: p)(packed)
    back = parallel(OURS, devices, lambda replica, p: p)(packed)
    assert [plain(part) for part in unpack_sequence(back)] == [
        plain(part) for part in sequences([3, 1, 2, 4, 2])
    ]


Empty = namedtuple("Empty", [])


@pytest.mark.devices(4)
def test_fault_18_types_of_containers_are_lost_and_data_with_them(devices):
    """Four containers that theirs rebuilds into something else, loses or cannot rebuild at all."""

    def kind(replica, x, value):
        return type(value).__name__, value

    given = Counter("aab")
    assert reported(THEIRS, devices, kind, rows(8), torch.Size([2, 3]))[0] == ("tuple", (2, 3))
    assert reported(THEIRS, devices, kind, rows(8), given)[0][1] != given
    with pytest.raises(TypeError, match="must be callable or None"):
        reported(THEIRS, devices, kind, rows(8), defaultdict(list, k=rows(8)))
    assert THEIRS.functions.scatter((rows(8), Empty()), devices) == []

    assert reported(OURS, devices, kind, rows(8), torch.Size([2, 3]))[0] == ("Size", (2, 3))
    assert reported(OURS, devices, kind, rows(8), given) == [("Counter", given)] * 4
    name, value = reported(OURS, devices, kind, rows(8), defaultdict(list, k=rows(8)))[1]
    assert (name, value.default_factory) == ("defaultdict", list)
    assert plain(value["k"]) == plain(rows(8)[2:4])
    chunks = OURS.functions.scatter((rows(8), Empty()), devices)
    assert [plain(chunk) for chunk, _ in chunks] == [plain(c) for c in rows(8).chunk(4)]
    assert [type(empty) for _, empty in chunks] == [Empty] * 4
