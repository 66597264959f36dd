"""Faults 5, 7, 9, 17 and 18: what goes into replicas and what comes out of them."""

import dataclasses
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence
from torch.utils import _pytree as pytree

from dataparallel._structure import scalar_warning
from tests.dataparallel.torch_faults.sides import BOTH, OURS, THEIRS, parallel, reported, rows
from tests.support import strategies
from tests.support.observe import plain


@dataclasses.dataclass
class Batch:
    """What a collate function returns."""

    x: torch.Tensor
    name: str = "train"


class Registered:
    """A container that torch knows by registration only."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


pytree.register_pytree_node(
    Registered, lambda node: ([node.inner], None), lambda values, _: Registered(values[0])
)


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


WRAPPERS = {
    "dataclass": Batch,
    "registered node": Registered,
    "OrderedDict": lambda inner: OrderedDict(b=inner, a=1),
    "defaultdict": lambda inner: defaultdict(list, k=inner),
    "deque": lambda inner: deque([inner, None], maxlen=4),
    "list": lambda inner: [inner, "text"],
}
UNWRAP = {
    Batch: lambda out: out.x,
    Registered: lambda out: out.inner,
    OrderedDict: lambda out: out["b"],
    defaultdict: lambda out: out["k"],
    deque: lambda out: out[0],
    list: lambda out: out[0],
}


@given(
    data=st.data(),
    names=st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=1, max_size=3),
)
def test_fault_05_any_nesting_goes_in_and_comes_out(devices, data, names):
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), 20, min_size=1))
    whole = rows(batch)
    for name in names:
        whole = WRAPPERS[name](whole)

    def forward(replica, tree):
        inner = tree
        for name in reversed(names):
            inner = UNWRAP[type(WRAPPERS[name](None))](inner)
        assert inner.device == replica.weight.device
        return tree

    out = parallel(OURS, targets, forward)(whole)
    for name in reversed(names):
        assert type(out) is type(WRAPPERS[name](None))
        out = UNWRAP[type(out)](out)
    assert plain(out) == plain(rows(batch))


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


@given(data=st.data(), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_fault_17_each_replica_has_whole_sequences(devices, data, lengths):
    """Replica r sees the r-th chunk of the sequences, as given, and the order is that on return."""
    targets = data.draw(strategies.device_lists(devices))
    ordered = data.draw(st.booleans())
    lengths = sorted(lengths, reverse=True) if ordered else lengths
    whole = sequences(lengths)
    seen = []

    def forward(replica, p: PackedSequence):
        assert p.data.device == replica.weight.device
        seen.append([plain(part) for part in unpack_sequence(p)])
        return p._replace(data=p.data * replica.weight)

    model = parallel(OURS, targets, forward)
    back = model(pack_sequence(whole, enforce_sorted=ordered))
    assert [plain(part) for part in unpack_sequence(back)] == [plain(part) for part in whole]
    seen.sort(key=lambda parts: parts[0][0][0])
    assert [part for parts in seen for part in parts] == [plain(part) for part in whole]
    assert [len(parts) for parts in seen] == [
        len(chunk) for chunk in torch.arange(len(lengths)).chunk(len(targets))
    ]
    back.data.sum().backward()
    assert plain(model.module.weight.grad) == plain(torch.cat(whole).sum(0))


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


LEAVES = {
    "Size": lambda: torch.Size([2, 3]),
    "Counter": lambda: Counter("aab"),
    "empty namedtuple": Empty,
    "empty tuple": tuple,
    "empty dict": dict,
    "empty defaultdict": lambda: defaultdict(int),
    "text": lambda: "text",
    "bytes": lambda: b"bytes",
    "none": lambda: None,
}


@given(data=st.data(), names=st.lists(st.sampled_from(sorted(LEAVES)), max_size=4))
def test_fault_18_siblings_keep_their_data(devices, data, names):
    """Whatever stands next to a tensor, both arrive, in and out, with the types they had."""
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), 20, min_size=1))
    others = [LEAVES[name]() for name in names]

    def forward(replica, x, given):
        assert given == others
        assert [type(each) for each in given] == [type(each) for each in others]
        return x, given

    out, back = parallel(OURS, targets, forward)(rows(batch), others)
    assert plain(out) == plain(rows(batch))
    assert back == others
    assert [type(each) for each in back] == [type(each) for each in others]
