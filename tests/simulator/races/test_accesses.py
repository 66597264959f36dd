"""Which bytes an operator touches: spans of tensors, against sets of bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._explore.races.accesses import share_bytes, span_of, tensor_arguments, tensors_of

MEMORY = torch.zeros(64, dtype=torch.uint8)


@st.composite
def views(draw):
    dtype = draw(st.sampled_from((torch.uint8, torch.int16, torch.float32)))
    memory = MEMORY.view(dtype)
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    stride = [draw(st.integers(0, 4)) for _ in shape]
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if last >= memory.numel():
        return memory[:1]
    return memory.as_strided(shape, stride, draw(st.integers(0, memory.numel() - 1 - last)))


def bytes_of(view):
    addresses = {0}
    for n, step in zip(view.shape, view.stride(), strict=True):
        addresses = {a + i * step for a in addresses for i in range(n)}
    begin = view.data_ptr()
    return {begin + a * view.itemsize + i for a in addresses for i in range(view.itemsize)}


@given(one=views(), other=views())
def test_two_views_share_bytes_if_their_sets_do(one, other):
    expected = bool(bytes_of(one) & bytes_of(other))
    assert share_bytes(span_of(one), span_of(other)) == expected
    assert share_bytes(span_of(other), span_of(one)) == expected


CALLS = {
    "add": (lambda x, y: (x, y), {}, [("x", False), ("y", False)]),
    "add_": (lambda x, y: (x, y), {}, [("x", True), ("y", False)]),
    "cat": (lambda x, y: ([x, y],), {}, [("x", False), ("y", False)]),
    "_foreach_add_": (lambda x, y: ([x], [y]), {}, [("x", True), ("y", False)]),
    "zeros_like": (lambda x, y: (x,), {}, []),
    "new_empty": (lambda x, y: (x, (2,)), {}, []),
}
OVERLOADS = {"add": "Tensor", "add_": "Tensor", "_foreach_add_": "List"}


@given(name=st.sampled_from(sorted(CALLS)))
def test_reads_and_writes_follow_from_the_schema(name):
    x, y = torch.ones(2), torch.ones(2)
    args, kwargs, expected = CALLS[name]
    op = getattr(getattr(torch.ops.aten, name), OVERLOADS.get(name, "default"))
    names = {id(x): "x", id(y): "y"}
    found = [
        (names[id(t)], writes) for t, writes in tensors_of(tensor_arguments(op), args(x, y), kwargs)
    ]
    assert found == expected


def test_an_output_by_name_is_written():
    x, out = torch.ones(2), torch.empty(2)
    found = tensors_of(tensor_arguments(torch.ops.aten.neg.out), (x,), {"out": out})
    assert [(t is out, writes) for t, writes in found] == [(False, False), (True, True)]


def test_parts_of_sparse_tensors_are_touched():
    sparse = torch.eye(3).to_sparse()
    found = tensors_of(tensor_arguments(torch.ops.aten.neg.default), (sparse,), {})
    assert [t.data_ptr() for t, _ in found] == [
        sparse._indices().data_ptr(),
        sparse._values().data_ptr(),
    ]


@pytest.mark.without("--races", reason="races on purpose")
@given(training=st.booleans(), batch=st.integers(2, 9))
def test_running_statistics_are_written_where_a_batch_norm_trains(simulated, training, batch):
    norm = torch.nn.BatchNorm1d(3, device=simulated[0]).train(training)
    x = torch.ones(batch, 3, device=simulated[0])
    torch.simgpu.synchronize(simulated[0])
    with simgpu.races() as races, torch.no_grad():
        for _ in range(2):
            with torch.simgpu.Stream(simulated[0]):
                norm(x)
    assert any(race.second.op == "native_batch_norm" for race in races) == training
