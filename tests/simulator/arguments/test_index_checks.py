"""Labels, indices, offsets and sizes are checked before a kernel uses them.

On the CPU most of these calls end the interpreter or read foreign memory; on a simulated device
each is an error.
"""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.support.calls import per_device

ops = torch.ops.aten
FAR = 10**9


def on(device, *numbers):
    return torch.tensor(numbers, device=device)


@per_device
def ctc_loss(device, targets, lengths=(1, 2), classes=4):
    scores = torch.randn(5, 2, classes).to(device).requires_grad_().log_softmax(2)
    loss = functional.ctc_loss(scores, torch.tensor(targets, device=device), (5, 5), lengths)
    return torch.autograd.grad(loss, scores)


@per_device
def ctc_backward(device, targets=((1, 2), (3, 1)), inputs=(5, 5), lengths=(2, 2), states=5):
    scores, alpha = (
        torch.zeros(5, 2, 4, device=device),
        torch.zeros(2, 5, states, device=device),
    )
    ones, labels = torch.ones(2, device=device), torch.tensor(targets, device=device)
    return ops._ctc_loss_backward(ones, scores, labels, inputs, lengths, ones, alpha, 0)


@per_device
def nll_backward(device, op, label, shape):
    labels = torch.full((shape[0], *shape[2:]), label, device=device)
    grad = torch.ones(labels.shape, device=device)
    total = torch.ones((), device=device)
    scores = torch.ones(shape, device=device)
    return op(grad, scores, labels, None, 0, -100, total)


@per_device
def pooled(device, dims, adaptive, index):
    """The gradient of max pooling, of two channels of 4 by 4 (by 4) into 2 by 2 (by 2)."""
    x = torch.ones(1, 2, *[4] * dims, device=device)
    grad = torch.ones(1, 2, *[2] * dims, device=device)
    places = torch.zeros(grad.shape, dtype=torch.int64, device=device)
    places[0, 0].fill_(index)
    if adaptive:
        return getattr(ops, f"adaptive_max_pool{dims}d_backward")(grad, x, places)
    op = getattr(ops, f"max_pool{dims}d_with_indices_backward")
    return op(grad, x, [2] * dims, [2] * dims, [0] * dims, [1] * dims, False, places)


def pooled_elsewhere(device):
    """As many indices as gradients, for more images than there are."""
    places = torch.zeros(2, 3, 2, 2, dtype=torch.int64, device=device)
    x = torch.ones(1, 1, 4, 4, device=device)
    return ops.adaptive_max_pool2d_backward(torch.ones(2, 3, 2, 2, device=device), x, places)


def averaged_elsewhere(device):
    x = torch.ones(1, 1, 4, 4, device=device)
    return ops._adaptive_avg_pool2d_backward(torch.ones(2, 3, 2, 2, device=device), x)


@per_device
def bags(device, offsets, mode="sum", **options):
    table, rows = torch.ones(5, 3, device=device), on(device, 0, 2, 1)
    begins = on(device, *offsets).long()
    return functional.embedding_bag(rows, table, begins, mode=mode, **options)


@per_device
def bags_backward(device, indices=(0, 1, 1), bag_of=(0, 0, 1), rows=5, sizes=(2, 1), **options):
    given = [on(device, *numbers) for numbers in (indices, bag_of, sizes)]
    none = torch.empty(0, dtype=torch.int64, device=device)
    frequent, mode = options.get("frequent", False), options.get("mode", 0)
    grad = torch.ones(2, 3, device=device)
    return ops._embedding_bag_dense_backward(grad, *given, none, rows, frequent, mode, None)


@per_device
def bags_of_weights(device, indices=(0, 1, 1), offsets=(0, 2), bag_of=()):
    given = [on(device, *indices), on(device, *offsets), on(device, *bag_of).long()]
    grad, table = torch.ones(2, 3, device=device), torch.ones(5, 3, device=device)
    return ops._embedding_bag_per_sample_weights_backward(grad, table, *given, 0)


@per_device
def table_backward(device, index, padding=-1):
    grad = torch.ones(2, 3, device=device)
    return ops.embedding_dense_backward(grad, on(device, 0, index), 5, padding, True)


@per_device
def unpacked(device, *sizes):
    data = torch.ones(3, 2, device=device, requires_grad=True)
    result, _ = ops._pad_packed_sequence(data, torch.tensor(sizes), False, 0.0, -1)
    return torch.autograd.grad(result.sum(), data)


def running_maximum(device):
    x, found = torch.ones(5, device=device), torch.ones(2, device=device)
    return ops._cummax_helper(x, found, on(device, 0), 0)


def segments_of_the_last_dimension(device):
    options = {"lengths": on(device, 1, 3), "axis": -1, "unsafe": True}
    return torch.segment_reduce(torch.ones(4, device=device), "sum", **options)


BEYOND = "is out of bounds"

CALLS = {
    "a label in a row of all": (ctc_loss([1, 2, FAR]), IndexError, BEYOND),
    "a gradient of labels past the classes": (
        ctc_backward(((1, 4), (3, 1))),
        IndexError,
        "Target 4 is out of bounds",
    ),
    "a gradient of longer labels": (ctc_backward(lengths=(2, FAR)), RuntimeError, "forward pass"),
    "a gradient of longer input": (ctc_backward(inputs=(5, FAR)), RuntimeError, "forward pass"),
    "a gradient of negative lengths": (ctc_backward(inputs=(-1, 5)), RuntimeError, "forward pass"),
    "a gradient of fewer states": (ctc_backward(states=3), RuntimeError, r"log_alpha \(2, 5, 3\)"),
    "more pooled than there is": (
        pooled_elsewhere,
        RuntimeError,
        r"input of shape \(1, 1, 4, 4\), .* got of shape \(2, 3, 2, 2\)$",
    ),
    "more averaged than there is": (averaged_elsewhere, RuntimeError, "does not go with an input"),
    "bags that begin before the first": (bags((0, -FAR)), RuntimeError, "offsets .* must rise"),
    "bags that fall": (bags((0, 3, 1)), RuntimeError, r"must rise from 0, got \[0, 3, 1\]"),
    "indices in no bag": (bags(()), RuntimeError, "3 indices are in no embedding bag"),
    "indices in no bag, of maxima": (bags((), "max"), RuntimeError, "no embedding bag"),
    "indices in no bag before the last": (
        bags((0,), include_last_offset=True),
        RuntimeError,
        r"offsets has shape \(1,\)",
    ),
    "bags that fall, of maxima": (bags((0, 3, 1), "max"), RuntimeError, "must rise"),
    "rows of a smaller table": (bags_backward((0, 4, 1), rows=1), RuntimeError, "from 0 to 0"),
    "fewer bags than indices": (bags_backward(bag_of=(0, 1)), RuntimeError, "number for each of"),
    "too few sizes of bags": (bags_backward(sizes=(2,), mode=1), RuntimeError, "bag_size of shape"),
    "rows by frequency": (bags_backward((0, -7, 1), frequent=True), RuntimeError, "got -7 among"),
    "weights of bags past the end": (bags_of_weights(offsets=(0, 9)), RuntimeError, "up to 9"),
    "padding past the table": (table_backward(FAR, FAR), RuntimeError, "got 1000000000 among"),
    "batches that grow": (unpacked(1, 2), RuntimeError, r"must fall.* got \[1, 2\]"),
    "batches of too many": (unpacked(2, 2), RuntimeError, "packed sequence of 3 rows"),
    "batches of less than nothing": (unpacked(4, -1), RuntimeError, "must fall"),
    "maxima in too little memory": (running_maximum, RuntimeError, "must have one shape"),
}


@pytest.mark.without("--async", reason="wrong values are reported at once")
@pytest.mark.parametrize("name", CALLS)
def test_invalid_index_raises(simulated, name):
    call, error, words = CALLS[name]
    with pytest.raises(error, match=words):
        call(simulated[1])


# Numbers beside those below that are as they should be.
VALID = {
    "what follows a short target": ctc_loss([[3, -FAR], [1, 2]]),
    "labels in a row": ctc_loss([3, 1, 2]),
    "a class to ignore": nll_backward(ops.nll_loss_backward, -100, (2, 3)),
    "empty bags": bags((0, 0, 3, 3)),
    "weights": bags_of_weights(),
    "padding": table_backward(3, 3),
    "batches": unpacked(2, 1),
    "segments counted from the last dimension": segments_of_the_last_dimension,
}


def agree_with_the_cpu(call, device):
    results = []
    for here in (device, torch.device("cpu")):
        torch.default_generator.manual_seed(0)
        result = call(here)
        results.append(result if isinstance(result, tuple) else (result,))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("name", VALID)
def test_valid_indices_are_accepted(simulated, name):
    agree_with_the_cpu(VALID[name], simulated[1])


# A call that uses its number as an index, and how many there are to choose from.
INDICES = {
    "a class": (partial(nll_backward, ops.nll_loss_backward, shape=(2, 3)), 3),
    "a class of pixels": (partial(nll_backward, ops.nll_loss2d_backward, shape=(2, 3, 1, 1)), 3),
    "a label": (lambda index: ctc_loss([[index, 0], [1, 2]]), 4),
    "a row": (lambda index: bags_backward((0, index, 1)), 5),
    "a bag": (lambda index: bags_backward(bag_of=(0, index, 1)), 2),
    "a row of weights": (lambda index: bags_of_weights((0, index, 1)), 5),
    "a bag of weights": (lambda index: bags_of_weights(bag_of=(0, index, 1)), 2),
    "a row by frequency": (table_backward, 5),
    **{
        f"a maximum of {'an adaptive' if adaptive else 'a'} pool of {dims} dimensions": (
            partial(pooled, dims, adaptive),
            4**dims,
        )
        for adaptive in (False, True)
        for dims in (2, 3)
    },
}


@pytest.mark.without("--async", reason="wrong values are reported at once")
@pytest.mark.parametrize("name", INDICES)
@given(data=st.data())
def test_an_index_is_from_0_to_the_last(simulated, name, data):
    make, count = INDICES[name]
    near = st.integers(-2, count + 1) | st.sampled_from([-1, count - 1, count])
    index = data.draw(near | st.sampled_from([FAR, -FAR]))
    if 0 <= index < count:
        agree_with_the_cpu(make(index), simulated[1])
        return
    says = rf"from 0 to {count - 1}\D.*got {index} among|Target {index} is out of bounds"
    with pytest.raises((IndexError, RuntimeError), match=says):
        make(index)(simulated[1])


@given(shape=st.lists(st.integers(0, 3), max_size=3).filter(lambda shape: len(shape) != 1))
@pytest.mark.parametrize("op", ["_embedding_bag", "_embedding_bag_forward_only"])
def test_offsets_that_are_no_list_are_refused_in_the_words_of_the_kernel(simulated, op, shape):
    offsets = torch.zeros(shape, dtype=torch.int64, device=simulated[1])
    table, rows = torch.ones(5, 3, device=simulated[1]), on(simulated[1], 0, 2)
    with pytest.raises(
        RuntimeError, match=f"a 1D Tensor, but got Tensor of dimension {len(shape)}"
    ):
        getattr(ops, op)(table, rows, offsets)
