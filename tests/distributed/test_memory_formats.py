"""Tensors that are not contiguous: which of them travel, and that their values stay in place."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import CollectiveMismatchError
from tests.support import collectives
from tests.support.worlds import few, schedules

pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*(is|will be) deprecated:FutureWarning"),
]

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def shapes(dims):
    return st.lists(st.integers(1, 3), min_size=dims, max_size=dims).map(tuple)


# Of more than one element each: such tensors lie in one format only.
LARGER = st.integers(4, 5).flatmap(
    lambda dims: st.lists(st.integers(2, 3), min_size=dims, max_size=dims).map(tuple)
)


def brought(rank, shape):
    return torch.arange(torch.Size(shape).numel()).view(shape).float() + 1000 * rank


def last(tensor):
    """The same values on a device, with the channels innermost in memory."""
    return tensor.cuda().contiguous(memory_format=FORMATS[tensor.dim()])


def brought_by_all(count, shape):
    """For each rank, a tensor for each rank."""
    return [[brought(rank, shape) + to for to in range(count)] for rank in range(count)]


@pytest.mark.parametrize("name", collectives.NAMES)
@few
@given(count=strategies.world_sizes(1, 4), shape=shapes(4) | shapes(5), seed=schedules)
def test_collectives_accept_channels_last(name, count, shape, seed):
    """NCCL takes it, and so does whoever sums the gradients of a model in channels_last."""
    parts = brought_by_all(count, shape)
    kind = collectives.FLAT_CALLS.get(name, (name,))[0]

    def call(rank):
        _, found = collectives.begin(name, parts, place=last)
        for tensor, values in zip(found, collectives.wanted(kind, parts, rank), strict=True):
            assert torch.equal(tensor.cpu(), values)
            assert tensor.is_contiguous(memory_format=FORMATS[len(shape)])

    simgpu.ranks(count, call, schedule=seed)


@st.composite
def layouts(draw, count):
    """A shape, and orders of its dims in memory, of which no two are one."""
    shape = draw(LARGER)
    orders = st.permutations(range(len(shape))).map(tuple)
    return shape, draw(st.lists(orders, min_size=count, max_size=count, unique=True))


def lying(tensor, order):
    """The same values with the dims of a tensor in this order in memory, the outermost first."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


@few
@given(drawn=layouts(2), seed=schedules)
@example(drawn=((2, 2, 2, 2), [(0, 1, 2, 3), (1, 0, 2, 3)]), seed=None)
@example(drawn=((2, 2, 2, 2), [(0, 2, 3, 1), (1, 0, 2, 3)]), seed=None)
@example(drawn=((2, 2, 2, 2), [(0, 1, 3, 2), (1, 0, 2, 3)]), seed=None)
def test_differing_memory_formats_raise(drawn, seed):
    """NCCL would put the values of one into other places of the other, without a word."""
    shape, orders = drawn

    def exchange(rank):
        x = lying(brought(rank, shape).cuda(), orders[rank])
        dist.recv(x, 0) if rank else dist.send(x, 1)

    reported = r"in memory (by dims|as channels_last).* call \.contiguous\(\)"
    with pytest.raises(CollectiveMismatchError, match=reported):
        simgpu.ranks(2, exchange, schedule=seed)


# Of all others the error shows the shape of what a rank brings.
WITHOUT_SHAPES = {"all_to_all", "all_to_all_single", "reduce_scatter_tensor"}


@pytest.mark.parametrize("name", collectives.NAMES)
@few
@given(count=strategies.world_sizes(2, 3), shape=LARGER, data=st.data(), seed=schedules)
def test_collective_names_ranks_with_other_memory_formats(name, count, shape, data, seed):
    """All of one rank's are channels_last, and contiguous those of the others."""
    other = data.draw(st.integers(0, count - 1))

    def call(rank):
        place = last if rank == other else torch.Tensor.cuda
        collectives.begin(name, brought_by_all(count, shape), place=place)

    reported = rf"in memory as {FORMATS[len(shape)]}.* call \.contiguous\(\)".replace("torch.", "")
    with pytest.raises(CollectiveMismatchError, match=reported) as raised:
        simgpu.ranks(count, call, schedule=seed)
    if name not in WITHOUT_SHAPES:
        assert str(raised.value).count(str(shape)) == 2, "as the program has it, on all ranks"


@few
@given(shape=st.integers(1, 5).flatmap(shapes), data=st.data(), seed=schedules)
def test_strides_of_single_element_dims_are_ignored(shape, data, seed):
    """A dim of one element may have any stride, and its tensor lies as without."""
    order = data.draw(st.permutations(range(len(shape))))
    far = data.draw(st.lists(st.integers(0, 99), min_size=len(shape), max_size=len(shape)))

    def exchange(rank):
        x = brought(rank, shape).cuda().permute(order)
        strides = [far[k] if x.shape[k] == 1 else x.stride(k) for k in range(x.dim())]
        if rank == 0:
            dist.send(x.as_strided(x.shape, strides), 1)
        else:
            dist.recv(x, 0)
            assert torch.equal(x.cpu(), brought(0, shape).permute(order))

    simgpu.ranks(2, exchange, schedule=seed)


@pytest.mark.parametrize(
    "name", [name for name in collectives.NAMES if name not in collectives.IN_PLACE]
)
@few
@given(shape=LARGER, swap=st.booleans(), seed=schedules)
def test_outputs_with_unlike_strides_are_refused(name, shape, swap, seed):
    places = (torch.Tensor.cuda, last) if swap else (last, torch.Tensor.cuda)

    def call(rank):
        collectives.begin(name, brought_by_all(2, shape), rank, *places)

    with pytest.raises(ValueError, match=r"same order of dim.*strides.*Call \.contiguous\(\)"):
        simgpu.ranks(2, call, schedule=seed)


def in_memory(tensor):
    """The values of a tensor in the order in which they lie in memory."""
    return torch.empty(0).set_(tensor.cpu().untyped_storage()).clone()


@pytest.mark.parametrize("name", ["all_gather_into_tensor", "reduce_scatter_tensor"])
@few
@given(
    count=strategies.world_sizes(1, 3),
    shape=LARGER,
    flat=st.sampled_from(["out", "input"]),
    seed=schedules,
)
def test_flat_outputs_follow_the_order_of_memory(name, count, shape, flat, seed):
    """A flat tensor has no format, and takes from those in channels_last what comes there."""
    larger = (count * shape[0], *shape[1:])

    def call(rank):
        gathers = name == "all_gather_into_tensor"
        small, large = (last(brought(rank, each)) for each in (shape, larger))
        mine, out = (small, large) if gathers else (large, small)
        wholes = [in_memory(last(brought(r, mine.shape))) for r in range(count)]
        wanted = torch.cat(wholes) if gathers else sum(wholes).chunk(count)[rank]
        if flat == "out":
            out = torch.zeros(out.numel(), device="cuda")
        else:
            mine = in_memory(mine).cuda()
        getattr(dist, name)(out, mine)
        assert torch.equal(in_memory(out), wanted)

    simgpu.ranks(count, call, schedule=seed)


@few
@given(
    count=strategies.world_sizes(1, 3),
    pieces=st.lists(st.tuples(LARGER, st.booleans()), min_size=2, max_size=3),
    data=st.data(),
    seed=schedules,
)
def test_each_tensor_of_a_coalesced_gather_has_its_own_format(count, pieces, data, seed):
    """All ranks have to agree on it for each of them, and on no more."""
    other = data.draw(st.none() | st.integers(0, len(pieces) - 1)) if count > 1 else None

    def call(rank):
        ins, outs = [], []
        for number, (shape, is_last) in enumerate(pieces):
            mine = brought(rank, shape).cuda()
            ins.append(last(mine) if is_last != (number == other and rank == 0) else mine)
            outs.append([torch.zeros_like(ins[-1]) for _ in range(count)])
        by_rank = [list(of_rank) for of_rank in zip(*outs, strict=True)]
        dist.all_gather_coalesced(by_rank, ins)
        for (shape, _), found in zip(pieces, outs, strict=True):
            assert [each.tolist() for each in found] == [
                brought(r, shape).tolist() for r in range(count)
            ]

    if other is None:
        simgpu.ranks(count, call, schedule=seed)
    else:
        with pytest.raises(CollectiveMismatchError, match="in memory as channels_last"):
            simgpu.ranks(count, call, schedule=seed)
