"""`dataparallel.comm` next to `torch.cuda.comm`: results, shared memory, version counters, errors.

Complex tensors are left out, which theirs returns as pairs of real numbers, and so are strides in
buckets, which theirs makes contiguous (faults 11 and 10 of tests/dataparallel/torch_faults).
"""

import pytest
import torch
import torch.cuda.comm
from hypothesis import given
from hypothesis import strategies as st

from dataparallel import comm as ours
from tests.support import strategies
from tests.support.observe import chosen, input_of, plain, same_memory, values
from tests.support.oracle import described, numbers, same

theirs = torch.cuda.comm

REAL = tuple(name for name in strategies.DTYPES if not name.startswith("complex"))


def shared(results, sources):
    """Which results show what is written to which sources."""
    return [[same_memory(source, result) for source in sources] for result in results]


# Theirs returns the tensor itself for each entry that names its device; ours only for the first.
@pytest.mark.devices(2, distinct=True, at_least=True)
@given(case=strategies.collective_cases("broadcast", REAL), on_cpu=st.booleans())
def test_broadcast(devices, case, on_cpu):
    targets = chosen(case.slots, devices)
    x = values(case.shape, case.dtype, case.seed)
    x = x if on_cpu else x.to(targets[0])
    # A list in theirs, whatever its documentation says.
    pair = ours.broadcast(x, targets), tuple(theirs.broadcast(x, numbers(targets)))
    assert described(pair[0]) == described(pair[1])
    assert shared(pair[0], [x]) == shared(pair[1], [x])


@given(case=strategies.collective_cases("broadcast", REAL), fits=st.booleans())
def test_broadcast_into_tensors(devices, case, fits):
    targets = chosen(case.slots, devices)
    x = values(case.shape, case.dtype, case.seed).to(targets[0])
    shape = case.shape if fits else (*case.shape, 2)

    def into(comm):
        out = [torch.zeros(shape, dtype=x.dtype, device=target) for target in targets]
        result = comm.broadcast(x, out=out)
        assert all(one is other for one, other in zip(result, out, strict=True))
        return tuple(result)

    assert same(lambda: into(ours), lambda: into(theirs)) == ("gives" if fits else "raises")


@st.composite
def many_tensors(draw, devices, names, rows):
    """A list of tensors for each of `rows` seeds, all alike in sizes and dtypes, and a limit."""
    kinds = draw(st.lists(st.sampled_from(names), min_size=1, max_size=6))
    shapes = [tuple(draw(st.lists(st.integers(1, 4), max_size=2))) for _ in kinds]
    limit = draw(st.sampled_from((1, 16, 64, 10 << 20)))
    return limit, [
        [values(s, k, seed=i + 9 * r, span=9) for i, (s, k) in enumerate(zip(shapes, kinds,
         strict=True))] for r in range(rows)
    ]  # fmt: skip


@given(data=st.data())
def test_broadcast_coalesced(devices, data):
    targets = data.draw(strategies.device_lists(devices))
    limit, (tensors,) = data.draw(many_tensors(devices, REAL, 1))
    tensors = [tensor.to(targets[0]) for tensor in tensors]

    def copies(comm, places):
        return [list(row) for row in comm.broadcast_coalesced(tensors, places, limit)]

    same(lambda: copies(ours, targets), lambda: copies(theirs, numbers(targets)))
    changed = []
    for comm, places in ((ours, targets), (theirs, numbers(targets))):
        rows = copies(comm, places)
        before = [[t._version for t in row] for row in rows]
        rows[-1][0].zero_()
        counted = [[t._version - v for t, v in zip(row, vs, strict=True)]
                   for row, vs in zip(rows, before, strict=True)]  # fmt: skip
        changed.append((counted, described(rows)))
        tensors = [
            values(tuple(tensor.shape), tensor.dtype, seed=k, span=9).to(targets[0])
            for k, tensor in enumerate(tensors)
        ]
    assert changed[0][0] == changed[1][0]


@given(data=st.data(), sparse=st.lists(st.booleans(), min_size=1, max_size=4))
def test_sparse_tensors_are_summed_alike(devices, data, sparse):
    """All sparse gives a sparse sum; a dense one among them makes it dense."""
    sparse = sparse[: len(devices)]
    targets = data.draw(strategies.device_lists(devices, min_size=len(sparse)))[: len(sparse)]
    parts = [values((4, 3), "float32", k, span=5) for k in range(len(sparse))]
    placed = [
        [(part.to_sparse(1) if is_sparse else part).to(target), torch.ones(2, device=target)]
        for part, target, is_sparse in zip(parts, targets, sparse, strict=True)
    ]
    before = [list(column) for column in placed]
    results = [
        ours.reduce_add_coalesced(placed, targets[0]),
        theirs.reduce_add_coalesced(placed, targets[0].index),
    ]
    for column, same_column in zip(placed, before, strict=True):  # the lists stay as they were
        assert all(one is other for one, other in zip(column, same_column, strict=True))
    assert [[t.layout for t in result] for result in results] == [
        [torch.sparse_coo if all(sparse) else torch.strided, torch.strided]
    ] * 2
    assert [described(result[1]) for result in results] == [described(results[1][1])] * 2
    dense = [result[0].to_dense() if all(sparse) else result[0] for result in results]
    assert [plain(tensor) for tensor in dense] == [plain(sum(parts))] * 2


@given(case=strategies.cases("scatter").filter(lambda case: case.dtype in REAL))
def test_scatter(devices, case):
    targets = chosen(case.slots, devices)
    x = input_of(case, devices)
    same(
        lambda: ours.scatter(x, targets, dim=case.dim),
        lambda: theirs.scatter(x, numbers(targets), dim=case.dim),
    )
    pair = ours.scatter(x, targets, None, case.dim), theirs.scatter(x, numbers(targets), None,
                                                                   case.dim)  # fmt: skip
    assert shared(pair[0], [x]) == shared(pair[1], [x])


@given(
    data=st.data(),
    case=strategies.cases("scatter").filter(lambda case: case.dtype in REAL),
    slip=st.sampled_from((0, 0, 1, -1)),
)
def test_scatter_by_sizes(devices, data, case, slip):
    """Sizes that a caller gives, which fit or do not, as chunks or as tensors to write into."""
    targets = chosen(case.slots, devices)
    x = input_of(case, devices)
    length = x.size(case.dim)
    cuts = sorted(data.draw(st.lists(st.integers(0, length), min_size=len(targets) - 1,
                                     max_size=len(targets) - 1)))  # fmt: skip
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)]
    sizes[-1] = max(sizes[-1] + slip, 0)

    def into(comm):
        shapes = [list(x.shape) for _ in targets]
        for shape, size in zip(shapes, sizes, strict=True):
            shape[case.dim] = size
        out = [torch.zeros(s, dtype=x.dtype, device=t) for s, t in zip(shapes, targets,
               strict=True)]  # fmt: skip
        return tuple(comm.scatter(x, dim=case.dim, out=out))

    expected = "gives" if sum(sizes) == length else "raises"
    assert expected == same(
        lambda: ours.scatter(x, targets, sizes, case.dim),
        lambda: theirs.scatter(x, numbers(targets), sizes, case.dim),
    )
    assert expected == same(lambda: into(ours), lambda: into(theirs))


@given(
    data=st.data(),
    dtype=strategies.dtypes(REAL),
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=5)
    | st.lists(st.integers(1, 3), min_size=4, max_size=5),
    last=st.just([True] * 8) | st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_gather(devices, data, dtype, shape, last):
    """Any sizes along `dim`, in any memory format, to any device and into a given tensor."""
    targets = data.draw(strategies.device_lists(devices))
    dim = data.draw(strategies.dims(len(shape)))
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    parts = []
    for k, target in enumerate(targets):
        shape[dim] = data.draw(st.integers(0, 3))
        memory = formats.get(len(shape)) if last[k] else None
        part = values(tuple(shape), dtype, k)
        part = part.contiguous(memory_format=memory) if memory else part
        parts.append(part.to(target))
    wanted = data.draw(st.sampled_from([*targets, torch.device("cpu")]))
    number = "cpu" if wanted.type == "cpu" else wanted.index
    same(lambda: ours.gather(parts, dim, wanted), lambda: theirs.gather(parts, dim, number))
    total = ours.gather(parts, dim, wanted)

    def into(comm):
        out = torch.zeros_like(total)
        assert comm.gather(parts, dim, out=out) is out
        return out

    assert same(lambda: into(ours), lambda: into(theirs)) == "gives"


BAD_CALLS = {
    "broadcast to nothing named": lambda comm, x, at: comm.broadcast(x),
    "broadcast to both": lambda comm, x, at: comm.broadcast(x, at, out=[x]),
    "broadcast into the CPU": lambda comm, x, at: comm.broadcast(x, out=[x.clone(), x.cpu()]),
    "broadcast into the CPU first": lambda comm, x, at: comm.broadcast(x, out=[x.cpu()]),
    "broadcast into another shape": lambda comm, x, at: comm.broadcast(x, out=[x[:1].clone()]),
    "coalesced from elsewhere": lambda comm, x, at: comm.broadcast_coalesced([x], at[::-1]),
    "sum of different sizes": lambda comm, x, at: comm.reduce_add([x, x[:1]], at[0]),
    "sum to nobody's device": lambda comm, x, at: comm.reduce_add([x, x], at[1]),
    "sums of different counts": lambda comm, x, at: comm.reduce_add_coalesced([[x], []], at[0]),
    "scatter to no device": lambda comm, x, at: comm.scatter(x, []),
    "scatter by too few sizes": lambda comm, x, at: comm.scatter(x, at, [1]),
    "scatter by sizes and tensors": lambda comm, x, at: comm.scatter(x, None, [4], out=[x]),
    "scatter to devices and tensors": lambda comm, x, at: comm.scatter(x, at, out=[x]),
    "scatter along no dimension": lambda comm, x, at: comm.scatter(x, at, dim=5),
    "scatter into other sizes": lambda comm, x, at: comm.scatter(x, out=[x[:, :1]]),
    "scatter by other sizes": lambda comm, x, at: comm.scatter(x, at[:2], (2, 3)),
    "scatter into nothing": lambda comm, x, at: comm.scatter(x, out=[]),
    "scatter into the CPU": lambda comm, x, at: comm.scatter(x, out=[x.cpu()]),
    "scatter into another shape": lambda comm, x, at: comm.scatter(x, out=[x[None]]),
    "scatter into fewer dimensions": lambda comm, x, at: comm.scatter(x, out=[x[0]], dim=1),
    "scatter into too little": lambda comm, x, at: comm.scatter(x, out=[x[:3].clone()]),
    "scatter into too few columns": lambda comm, x, at: comm.scatter(x, dim=-1, out=[x[:, :1]]),
    "scatter a number": lambda comm, x, at: comm.scatter(x.sum(), at),
    "gather nothing": lambda comm, x, at: comm.gather([]),
    "gather from the CPU": lambda comm, x, at: comm.gather((x, x.cpu())),
    "gather other sizes": lambda comm, x, at: comm.gather([x, x[:, :1]], 0, at[0]),
    "gather other dimensions": lambda comm, x, at: comm.gather([x, x[0]], 0, at[0]),
    "gather into another size": lambda comm, x, at: comm.gather([x, x], 0, out=x.clone()),
    "gather to both": lambda comm, x, at: comm.gather([x], 0, at[0], out=x.clone()),
}

# Theirs names a device by its number, and fails at a `zip` of its own. On GPUs its other texts have
# no quotes and a space less, and are those of split_with_sizes.
IN_OTHER_WORDS = (
    *("coalesced from elsewhere", "sums of different counts"),
    *("gather from the CPU", "gather other dimensions", "scatter by other sizes"),
)


@pytest.mark.devices(4, distinct=True)  # several calls are wrong for being on another device
@pytest.mark.parametrize("name", sorted(BAD_CALLS))
def test_bad_calls_raise_their_words(devices, name):
    """Programs look for them; ours may say more behind them."""
    call, x, at = BAD_CALLS[name], values((4, 2), "float32").to(devices[0]), numbers(devices)
    assert same(lambda: call(ours, x, at), lambda: call(theirs, x, at)) == "raises"
    words = []
    for comm in (ours, theirs):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - `same` compares the types
            call(comm, x, at)
        words.append(str(caught.value).splitlines()[0].lower().replace(", (", " ("))
    assert words[0].startswith(words[1]) or name in IN_OTHER_WORDS
