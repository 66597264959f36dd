"""scatter, scatter_kwargs and gather next to `torch.nn.parallel`: structure, values, gradients.

Left out are the rows of `torch_faults`: arguments of different batch sizes (3), tensors without
dimensions (4), leaves of outputs that are no tensors (5), replicas without input (2), and complex
tensors cut along their last dimension (11).
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import scatter_gather as theirs

import dataparallel as ours
from tests.support import strategies
from tests.support.observe import chosen, input_of, place, plain, same_memory, values
from tests.support.oracle import described, same


def cases(op):
    return strategies.cases(op).filter(
        lambda case: not case.dtype.startswith("complex") or 0 <= case.dim < len(case.shape)
    )


@given(case=cases("scatter"))
def test_scatter(devices, case):
    """Sizes, devices, dtypes, strides and values, and which chunks are views."""
    targets = chosen(case.slots, devices)
    x = input_of(case, devices)
    same(lambda: ours.scatter(x, targets, case.dim), lambda: theirs.scatter(x, targets, case.dim))
    pair = [lib.scatter(x, targets, case.dim) for lib in (ours, theirs)]
    views = [[same_memory(chunk, x) for chunk in chunks] for chunks in pair]
    assert views[0] == views[1]


@given(data=st.data(), tree=strategies.nested(), source=st.integers(-1, 7))
def test_scatter_of_structures(devices, data, tree, source):
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), 20))
    whole = strategies.built(tree, batch)
    x = values((batch, 2), "float32").to(place(source, devices))
    same(lambda: ours.scatter((whole, x), targets), lambda: theirs.scatter((whole, x), targets))


@given(
    data=st.data(),
    names=st.lists(st.sampled_from("abc"), unique=True, max_size=2),
    positional=st.integers(0, 3),
    constant=st.booleans(),
)
def test_scatter_kwargs(devices, data, names, positional, constant):
    """Either side may be empty; constants stand beside tensors on their side."""
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), 20))
    args = tuple(values((batch, k + 1), "float32", k) for k in range(positional))
    kwargs = {name: values((batch,), "int64", ord(name)) for name in names}
    if constant and args:
        args = (*args, "text")
    if constant and kwargs:
        kwargs["constant"] = 3
    same(
        lambda: ours.scatter_kwargs(args, kwargs, targets),
        lambda: theirs.scatter_kwargs(args, kwargs, targets),
    )


leaves = st.none() | strategies.rows


@given(
    data=st.data(),
    tree=strategies.nested(leaves),
    sizes=st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_gather_of_structures(devices, data, tree, sizes):
    """Replicas that give different numbers of rows, to any of their devices or another one."""
    targets = data.draw(strategies.device_lists(devices))
    outputs = [on(strategies.built(tree, n), t) for n, t in zip(sizes, targets, strict=False)]
    wanted = data.draw(st.sampled_from(devices))
    same(lambda: ours.gather(outputs, wanted), lambda: theirs.gather(outputs, wanted))


def on(tree, target):
    if isinstance(tree, torch.Tensor):
        return tree.to(target)
    return strategies.mapped(tree, lambda child: on(child, target))


@pytest.mark.filterwarnings("ignore:every replica returned a 0-dimensional tensor")
@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0")
@given(data=st.data())
def test_scalars_become_a_vector(devices, data):
    targets = data.draw(strategies.device_lists(devices))
    seen = []
    for lib in (ours, theirs):
        losses = [torch.tensor(float(k), device=t).requires_grad_() for k, t in enumerate(targets)]
        whole = lib.gather(losses, targets[0])
        (whole * torch.arange(1.0, len(losses) + 1, device=targets[0])).sum().backward()
        seen.append((described(whole), [plain(loss.grad) for loss in losses]))
    assert seen[0] == seen[1]


BAD_CALLS = {
    "scatter along no dimension": lambda lib, x, at: lib.scatter(x, at, 7),
    "scatter to no device": lambda lib, x, at: lib.scatter(x, []),
    "gather other sizes": lambda lib, x, at: lib.gather([x, x[:, :1]], at[0]),
    "gather other dimensions": lambda lib, x, at: lib.gather([x, x[0]], at[0]),
    "gather along no dimension": lambda lib, x, at: lib.gather([x, x], at[0], 7),
    "gather dicts of other lengths": lambda lib, x, at: lib.gather([{"a": x}, {}], at[0]),
    "gather tuples of other lengths": lambda lib, x, at: lib.gather([(x,), (x, x)], at[0]),
}


@pytest.mark.devices(4)
@pytest.mark.parametrize("name", sorted(BAD_CALLS))
def test_bad_calls(devices, name):
    call, x = BAD_CALLS[name], values((4, 2), "float32").to(devices[0])
    assert same(lambda: call(ours, x, devices), lambda: call(theirs, x, devices)) == "raises"
