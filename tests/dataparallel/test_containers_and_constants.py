"""What is no tensor: containers with more to them than their items, and constants of replicas."""

import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence
from torch.utils import _pytree as pytree

import dataparallel
from tests.support import strategies
from tests.support.chunk_rule import chunk_sizes
from tests.support.observe import plain, values


class Named(namedtuple("Named", "x y")):
    """A namedtuple that is reported something more."""


class Items(list):
    pass


class Queue(deque):
    """Its constructor takes other arguments than a deque's."""

    def __init__(self, x, y):
        super().__init__((x, y), maxlen=3)
        self.note = "kept"


class Pair(tuple):
    pass


class Table(dict):
    pass


class Ordered(OrderedDict):
    pass


@dataclasses.dataclass(frozen=True)
class Record:
    x: Any
    y: Any
    more: str = dataclasses.field(default="", init=False)


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "y")
    x: Any
    y: Any


class Output(OrderedDict):
    """As transformers' models return it: its keys are attributes, and what is None has no key."""

    def __init__(self, **given: Any) -> None:
        super().__init__((name, value) for name, value in given.items() if value is not None)
        self.__dict__.update(given)


class Sorted(dict):
    """Registered with its children in the order of the keys, not in that of the dict."""


class Boxed(dict):
    """Registered with other children than its values: each in a tuple."""


class Registered:
    """A container that torch knows by registration only."""

    def __init__(self, x, y):
        self.pair = (x, y)


for kind, flatten, unflatten in (
    (
        Output,
        lambda it: ([*it.values()], [*it]),
        lambda new, keys: Output(**dict(zip(keys, new, strict=True))),
    ),
    (
        Sorted,
        lambda it: ([it[key] for key in sorted(it)], sorted(it)),
        lambda new, keys: Sorted(zip(keys, new, strict=True)),
    ),
    (
        Boxed,
        lambda it: ([(value,) for value in it.values()], [*it]),
        lambda new, keys: Boxed(zip(keys, (value for (value,) in new), strict=True)),
    ),
    (Registered, lambda it: ([*it.pair], None), lambda new, _: Registered(*new)),
):
    pytree.register_pytree_node(kind, flatten, unflatten)


def noted(container):
    container.note = "kept"
    return container


def record(x, y):
    made = Record(x, y)
    object.__setattr__(made, "more", "kept")
    return made


# How each is made of two parts, its parts again, and what else there is to it.
CONTAINERS = {
    "namedtuple": (lambda x, y: noted(Named(x, y)), tuple, lambda c: c.note),
    "tuple": (lambda x, y: noted(Pair((x, y))), tuple, lambda c: c.note),
    "list": (lambda x, y: noted(Items((x, y))), tuple, lambda c: c.note),
    "dict": (lambda x, y: noted(Table(x=x, y=y)), lambda c: (c["x"], c["y"]), lambda c: c.note),
    "ordered": (
        lambda x, y: noted(Ordered(y=y, x=x)),
        lambda c: (c["x"], c["y"]),
        lambda c: (c.note, list(c)),
    ),
    "default": (
        lambda x, y: defaultdict(int, x=x, y=y),
        lambda c: (c["x"], c["y"]),
        lambda c: (c.default_factory, list(c)),
    ),
    "deque": (lambda x, y: deque([x, y], maxlen=3), tuple, lambda c: c.maxlen),
    "queue": (Queue, tuple, lambda c: (c.note, c.maxlen)),
    "frozen": (record, lambda c: (c.x, c.y), lambda c: c.more),
    "slots": (Slotted, lambda c: (c.x, c.y), lambda c: None),
}
REGISTERED = {
    "output": (lambda x, y: Output(y=y, x=x), lambda c: (c["x"], c.get("y")), lambda c: None),
    "sorted": (lambda x, y: Sorted(y=y, x=x), lambda c: (c["x"], c["y"]), lambda c: None),
    "boxed": (lambda x, y: Boxed(y=y, x=x), lambda c: (c["x"], c["y"]), lambda c: None),
    "registered": (Registered, lambda c: c.pair, lambda c: None),
}


@pytest.mark.parametrize("name", [*CONTAINERS, *REGISTERED])
@given(data=st.data(), inner=st.sampled_from([*CONTAINERS, *REGISTERED]))
def test_container_keeps_its_attributes_both_ways(devices, name, data, inner):
    """Its factory and its order, too; and the one that was given stays as it was."""
    targets = data.draw(strategies.device_lists(devices))
    kinds = CONTAINERS | REGISTERED
    make, parts, more = kinds[name]
    within, inside, _ = kinds[inner]
    x = values((2 * len(targets),), "float32")
    whole = make(x, within(x + 1, None))
    pieces = dataparallel.scatter(whole, targets)
    assert parts(whole)[0] is x
    chunks = x.chunk(len(targets))
    for piece, target, chunk in zip(pieces, targets, chunks, strict=True):
        assert type(piece) is type(whole)
        assert more(piece) == more(whole)
        first, second = parts(piece)
        assert first.device == inside(second)[0].device == target
        assert plain(first) == plain(chunk)
        assert plain(inside(second)[0]) == plain(chunk + 1)
        assert inside(second)[1] is None
    back = dataparallel.gather(pieces, targets[0])
    assert type(back) is type(whole)
    assert type(parts(back)[1]) is type(parts(whole)[1])
    assert more(back) == more(whole)
    assert [plain(parts(back)[0]), plain(inside(parts(back)[1])[0])] == [plain(x), plain(x + 1)]
    assert plain(parts(pieces[0])[0]) == plain(chunks[0])  # an output is the replica's own


@pytest.mark.parametrize("kind", [Table, Output, Sorted])
@given(data=st.data(), order=st.permutations("ab"))
def test_dicts_are_joined_by_their_keys(devices, kind, data, order):
    """Whatever order each replica puts them in; other keys are refused."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    one, two = values((2, 2), "float32", 1), values((2, 2), "float32", 2)
    outputs = [kind(a=one.to(target), b=two.to(target)) for target in targets]
    outputs[-1] = kind(**{key: outputs[-1][key] for key in order})
    back = dataparallel.gather(outputs, targets[0])
    assert type(back) is kind
    assert plain(back["a"]) == plain(one.repeat(len(targets), 1))
    assert plain(back["b"]) == plain(two.repeat(len(targets), 1))
    if len(targets) > 1:
        outputs = [kind(a=one.to(target)) for target in targets[1:]]
        with pytest.raises(ValueError, match=r"not built alike.*\['b'\] in replica 0.*\['a'\]"):
            dataparallel.gather([kind(b=two.to(targets[0])), *outputs], targets[0])


class Attributes(dict):
    """A dict whose items are its attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


def with_head(make):
    """What `make` makes, with its first part as an attribute that is no child of its own."""

    def made(x, y):
        container = make(x, y)
        object.__setattr__(container, "head", x)
        return container

    return made


# How each is made of two parts, and the first of them, as a child and as an attribute.
ATTRIBUTES = {
    "items": (lambda x, y: Attributes(x=x, y=y), lambda c: (c["x"], c.x)),
    **{
        name: (with_head(make), lambda c, parts=parts: (parts(c)[0], c.head))
        for name, (make, parts, _) in CONTAINERS.items()
        if hasattr(make(0, 0), "__dict__")
    },
}


@pytest.mark.parametrize("name", ATTRIBUTES)
@given(data=st.data(), rows=st.integers(1, 9), boxed=st.booleans())
def test_attribute_that_is_a_child_stays_that_child(devices, name, data, rows, boxed):
    """It was the whole batch in what each replica got, and the first replica's rows in outputs."""
    targets = data.draw(strategies.device_lists(devices))
    make, both = ATTRIBUTES[name]
    x = values((rows,), "float32").to(targets[0])
    whole = make([x] if boxed else x, "constant")
    pieces = dataparallel.scatter(whole, targets)
    back = dataparallel.gather(pieces, targets[0])
    for container in (*pieces, back):
        child, attribute = both(container)
        assert attribute is child
    if name == "items":
        pieces[0].z = 3
        assert pieces[0]["z"] == 3
        assert "z" not in whole
    found = [both(container)[1] for container in (back, whole)]
    assert [plain(each[0] if boxed else each) for each in found] == [plain(x)] * 2


def with_its_items(x, y):
    """A dict that has each item as an attribute of that name, too."""
    table = Table(x=x, y=y)
    table.x, table.y = x, y
    return table


# From two parts to what has them by the names x and y.
NAMED = {"dataclass": record, "items": Attributes, "items and attributes": with_its_items}


@pytest.mark.parametrize("name", NAMED)
@given(data=st.data(), rows=st.integers(1, 3))
def test_parts_shared_in_some_outputs_are_joined_separately(devices, name, data, rows):
    """As where some replicas give what they got beside what they made of it, and others twice."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    same = data.draw(st.lists(st.booleans(), min_size=len(targets), max_size=len(targets)))
    x = values((rows * len(targets),), "float32")
    firsts = [part.to(target) for part, target in zip(x.split(rows), targets, strict=True)]
    seconds = [part if one else part + 1 for part, one in zip(firsts, same, strict=True)]
    outputs = [NAMED[name](x=a, y=b) for a, b in zip(firsts, seconds, strict=True)]
    back = dataparallel.gather(outputs, targets[0])
    assert plain(back.x) == plain(x)
    assert plain(back.y) == plain(torch.cat([part.cpu() for part in seconds]))


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


# What is one object wherever it is used, so that two places that have it need not mean each other.
ONLY_ONES = (0, 1, None, "a", b"a", torch.float32, torch.int64, Colour.RED, Colour.GREEN, len, enum)


def drawn_constants(data, targets):
    """A constant for each output, and what they are once joined."""
    count = len(targets)
    some = data.draw(st.lists(st.sampled_from(ONLY_ONES), min_size=1, max_size=2))
    constants = data.draw(st.lists(st.sampled_from(some), min_size=count, max_size=count))
    return constants, constants[0] if len({*map(id, constants)}) == 1 else constants


@pytest.mark.parametrize("name", NAMED)
@given(data=st.data())
def test_a_constant_is_the_attribute_of_its_name(devices, name, data):
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    constants, joined = drawn_constants(data, targets)
    back = dataparallel.gather([NAMED[name](x=each, y=1) for each in constants], targets[0])
    assert (back.x, back.y) == (joined, 1)


@pytest.mark.parametrize("name", sorted({*ATTRIBUTES} - {"items"}))
@given(data=st.data())
def test_attribute_equal_to_a_constant_child_stays(devices, name, data):
    """It need not be that child."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    make, both = ATTRIBUTES[name]
    constants, joined = drawn_constants(data, targets)
    back = dataparallel.gather([make(each, 1) for each in constants], targets[0])
    assert both(back) == (joined, constants[0])


class Unclear:
    """Compares to something that has no truth, as arrays do."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


UNCLEAR = Unclear()

# Two constants, and whether they are the same to whoever gets one instead of a list.
CONSTANTS = {
    "numbers": (2.5, 2.5, True),
    "other numbers": (2.5, 3.5, False),
    "nan": (float("nan"), float("nan"), True),
    "nan and a number": (float("nan"), 1.0, False),
    "a number and nan": (1.0, float("nan"), False),
    "texts": ("ab", "".join("ab"), True),
    "truth and number": (True, 1, False),
    "none": (None, None, True),
    "none and nought": (None, 0, False),
    "one that cannot be compared": (UNCLEAR, UNCLEAR, True),
    "two that cannot be compared": (UNCLEAR, Unclear(), False),
    "sizes": (torch.Size([2]), torch.Size([2]), True),
}


@pytest.mark.parametrize("name", CONSTANTS)
@given(data=st.data(), nested=st.booleans())
def test_equal_constants_are_joined_into_one(devices, name, data, nested):
    """Those that do not are a list in replica order; one odd one out is enough."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    one, other, agree = CONSTANTS[name]
    odd = data.draw(st.integers(0, len(targets) - 1))
    outputs = [other if k == odd else one for k in range(len(targets))]
    if nested:
        found = dataparallel.gather([{"k": (each,)} for each in outputs], targets[0])["k"][0]
    else:
        found = dataparallel.gather(outputs, targets[0])
    if agree:
        assert found is outputs[0]
    else:
        assert type(found) is list
        assert len(found) == len(outputs)
        assert all(mine is given for mine, given in zip(found, outputs, strict=True))


class Sizes(nn.Module):
    """Notes what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen: list[tuple[list[int], dict[str, Any]]] = []

    def forward(self, x, **more):
        self.seen.append((list(x.shape), dict(more)))
        return x * self.weight + more.get("shift", 0)


@given(
    data=st.data(),
    dim=st.sampled_from((0, 1, -1, -2)),
    chunking=st.sampled_from(("torch", "balanced")),
    shifted=st.booleans(),
)
def test_function_has_the_options_of_the_module(devices, data, dim, chunking, shifted):
    """Which dimension is cut and how, the output's device, and the keyword arguments."""
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), 30, min_size=1))
    wanted = data.draw(st.sampled_from(targets))
    shape = [2, 2]
    shape[dim] = batch
    x = values(tuple(shape), "float32").to(targets[0])
    kwargs = {"shift": 3} if shifted else None
    net = Sizes().to(targets[0])
    model = dataparallel.DataParallel(net, targets, wanted, dim, chunking=chunking)
    outs = [
        model(x, **kwargs or {}),
        dataparallel.data_parallel(net, x, targets, wanted, dim, kwargs, chunking=chunking),
    ]
    calls = len(net.seen) // 2
    cut = [sorted(size[dim] for size, _ in seen) for seen in (net.seen[:calls], net.seen[calls:])]
    sizes = chunk_sizes(batch, len(targets))
    if chunking == "balanced":
        used = min(batch, len(targets))
        sizes = [batch // used + (k < batch % used) for k in range(used)]
    assert cut == [sorted(sizes)] * 2
    chunks, _ = model.scatter((x,), {}, model.device_ids)
    assert [chunk.size(dim) for (chunk,) in chunks] == sizes
    for out in outs:
        assert out.device == (wanted if len(targets) > 1 else targets[0])
        assert plain(out) == plain(x + 3 * shifted)


@given(data=st.data(), tensor=st.booleans())
def test_each_replica_has_keyword_arguments_of_its_own(devices, data, tensor):
    """A forward may take out of them what it likes."""
    targets = data.draw(strategies.device_lists(devices))
    x = values((2 * len(targets), 1), "float32")
    kwargs = {"factor": x} if tensor else {"factor": 2}
    positional, each = dataparallel.scatter_kwargs((), kwargs, targets)
    assert positional == ((),) * len(targets)
    for own in each:
        own.pop("factor")
    assert list(kwargs) == ["factor"]
    _, each = dataparallel.scatter_kwargs((x.to(targets[0]),), {"row": None}, targets)
    assert len({id(own) for own in each}) == len(targets)


class Maker:
    """No tuple, though it has what a namedtuple has."""

    _fields = ("x",)

    def _make(self, values):
        raise AssertionError("never asked")


class Making(tuple):
    """A tuple that can make others, without names."""

    def _make(self, values):
        raise AssertionError("never asked")


class Fields(tuple):
    """A tuple with names, that cannot make others."""

    _fields = ("x", "y")


@dataclasses.dataclass(eq=False)
class Scale(nn.Module):
    """A module whose constructor is written for it."""

    factor: float

    def __post_init__(self) -> None:
        super().__init__()


@given(
    data=st.data(),
    constant=st.sampled_from((Record, Named, Maker(), Scale(2.0))),
    kind=st.sampled_from((Making, Fields)),
)
def test_objects_like_containers_are_constants(devices, data, constant, kind):
    """A class is none of its instances, and a module is itself."""
    targets = data.draw(strategies.device_lists(devices))
    x = values((2 * len(targets), 3), "float32")
    chunks = dataparallel.scatter({"x": x, "it": constant, "pair": kind((x, 1))}, targets)
    assert all(chunk["it"] is constant for chunk in chunks)
    assert {type(chunk["pair"]) for chunk in chunks} == {kind}
    assert [plain(chunk["pair"][0]) for chunk in chunks] == [plain(chunk["x"]) for chunk in chunks]


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
