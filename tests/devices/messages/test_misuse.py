"""Mistakes that have words of their own on CUDA, and tensors of one call on different devices.

The words are CUDA's but for the device's type. Each operator of a table is called with one of its
arguments elsewhere, each argument in turn, on the CPU and on another device. More operators are in
tests/support/cuda_code/two_devices.py, with what CUDA's own code said of each.
"""

import re
import warnings

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.support.observe import plain

TOGETHER = "Expected all tensors to be on the same device"


def title(device):
    """A device's name within the name of a tensor type."""
    return "torch.FloatTensor" if device.type == "cpu" else f"torch.{device.type}.FloatTensor"


def elsewhere(data, devices):
    """A device, and another place than it: the CPU or another device."""
    home = data.draw(st.sampled_from(devices))
    away = data.draw(st.sampled_from([torch.device("cpu"), *(d for d in devices if d != home)]))
    return home, away


INDEXING = {
    "get": lambda x, i: x[i],
    "get_pair": lambda x, i: x[i, i],
    "set_number": lambda x, i: x.__setitem__(i, 1.0),
    "set_row": lambda x, i: x.__setitem__(i, x[0].clone()),
    "put": lambda x, i: x.index_put((i,), x[0]),
}


def check_convolutions(devices, data):
    device = data.draw(st.sampled_from(devices))
    cpu = torch.device("cpu")
    for x_place, net_place in ((device, cpu), (cpu, device)):
        net = nn.Conv2d(1, 2, 3).to(net_place)
        words = f"Input type ({title(x_place)}) and weight type ({title(net_place)}) should be"
        with pytest.raises(RuntimeError, match=re.escape(words)):
            net(torch.ones(1, 1, 4, 4, device=x_place))


def check_recurrent_networks(devices, data):
    home, away = elsewhere(data, devices)
    net = data.draw(st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]))(3, 3).to(home)
    words = f"found input tensor at {away} and parameter tensor at {home}"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        net(torch.ones(2, 3, device=away))


def check_indices(devices, data):
    """What is read is indexed from the CPU or its own device, what is written from anywhere."""
    home, away = elsewhere(data, devices)
    name = data.draw(st.sampled_from(sorted(INDEXING)))
    index = torch.tensor([True, False, True] if data.draw(st.booleans()) else [0, 2])
    reads = name.startswith("get")
    expected = torch.arange(9.0).reshape(3, 3)
    row = INDEXING[name](expected, index)
    for target, source in ((home, away), (torch.device("cpu"), home)):
        x = torch.arange(9.0, device=target).reshape(3, 3)
        if reads and source.type != "cpu":
            words = (
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({target})"
            )
            with pytest.raises(RuntimeError, match=re.escape(words)):
                INDEXING[name](x, index.to(source))
            continue
        found = INDEXING[name](x, index.to(source))
        assert plain(x) == plain(expected)
        if row is not None:
            assert found.device == target
            assert plain(found) == plain(row)


def check_numpy(devices, data):
    """Arrays neither come from a device nor meet its tensors by themselves."""
    x = torch.ones(3, device=data.draw(st.sampled_from(devices)))
    words = (
        f"can't convert {x.device} device type tensor to numpy. Use Tensor.cpu() to copy the "
        "tensor to host memory first."
    )
    for convert in (torch.Tensor.numpy, numpy.asarray):
        with pytest.raises(TypeError, match=re.escape(words)):
            convert(x)
    with pytest.raises(RuntimeError, match=TOGETHER):
        x + torch.from_numpy(numpy.ones(3, dtype=numpy.float32))
    assert x.cpu().numpy().tolist() == [1.0] * 3


def check_generators(devices, data):
    home = data.draw(st.sampled_from(devices))
    words = f"Expected a '{home.type}' device type for generator but found 'cpu'"
    for draw in (
        lambda g: torch.randn(2, device=home, generator=g),
        lambda g: torch.empty(2, device=home).uniform_(generator=g),
        lambda g: torch.bernoulli(torch.ones(2, device=home), generator=g),
        lambda g: torch.randperm(4, device=home, generator=g),
    ):
        with pytest.raises(RuntimeError, match=re.escape(words)):
            draw(torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found"):
        torch.randn(2, generator=torch.Generator(device=home))


def check_ordinals(devices, data):
    past = data.draw(st.integers(0, 60))
    kind = devices[0].type
    module = torch.get_device_module(kind)
    missing = torch.device(kind, module.device_count() + past)
    x = torch.ones(2, device=data.draw(st.sampled_from(devices)))
    current = module.current_device()
    for use in (
        lambda: module.set_device(missing),
        lambda: module.device(missing).__enter__(),
        lambda: module.synchronize(missing),
        lambda: torch.zeros(2, device=missing),
        lambda: x.to(missing),
        lambda: x.cpu().to(missing),
        lambda: torch.tensor(1.0, device=missing),
        lambda: nn.Linear(2, 2, device=missing),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use()
    assert module.current_device() == current
    with pytest.raises(RuntimeError, match="Invalid device string"):
        torch.ones(2, device=f"{kind}:x")


def check_gradients(devices, data):
    """A gradient given for an output, or a custom backward's, that lies elsewhere."""
    home, away = elsewhere(data, devices)
    x = torch.ones(3, device=home, requires_grad=True)
    with pytest.raises(RuntimeError, match="expected device"):
        (x * 2).backward(torch.ones(3, device=away))
    with pytest.raises(RuntimeError, match=TOGETHER):
        torch.stack([x.sum(), torch.ones((), device=away)]).sum().backward()


# Those that need one device, and those that need others beside it.
ON_ONE = {
    "convolutions": check_convolutions,
    "numpy": check_numpy,
    "ordinals": check_ordinals,
}
ON_SEVERAL = {
    "generators": check_generators,
    "gradients": check_gradients,
    "indices": check_indices,
    "recurrent networks": check_recurrent_networks,
}


@pytest.mark.usefixtures("words_of_newer_cuda")
@pytest.mark.parametrize("name", ON_ONE)
@given(data=st.data())
def test_mistake_has_the_words_of_cuda(devices, name, data):
    ON_ONE[name](devices, data)


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize("name", ON_SEVERAL)
@given(data=st.data())
def test_mistake_among_devices_has_the_words_of_cuda(devices, name, data):
    ON_SEVERAL[name](devices, data)


@pytest.mark.devices(2, distinct=True)
@given(data=st.data())
def test_a_number_of_the_cpu_takes_nothing_from_a_device(devices, data):
    device = data.draw(st.sampled_from(devices))
    number = torch.tensor(1.0)
    with pytest.raises(RuntimeError, match=TOGETHER):
        number.add_(torch.ones((), device=device))
    with pytest.raises(RuntimeError, match=TOGETHER):
        torch.add(torch.ones((), device=device), 1.0, out=number)
    assert number.item() == 1.0


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("foreach", [False, True])
@given(data=st.data(), slot=st.sampled_from(["momentum_buffer", "grad"]))
def test_optimizer_state_on_another_device_raises(devices, foreach, data, slot):
    home, away = elsewhere(data, devices)
    parameter = torch.ones(3, device=home, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5, foreach=foreach)
    if slot == "grad":
        with pytest.raises(RuntimeError, match="attempting to assign a gradient"):
            parameter.grad = torch.ones(3, device=away)
        return
    parameter.grad = torch.ones(3, device=home)
    optimizer.step()
    state = optimizer.state[parameter]
    state["momentum_buffer"] = state["momentum_buffer"].to(away)
    # On the CPU it could be a count of steps, which foreach allows; the kernel does not.
    grouped = foreach and away.type != "cpu"
    words = "Tensors of the same index must be on the same device" if grouped else TOGETHER
    with pytest.raises(RuntimeError, match=words):
        optimizer.step()


X = torch.arange(9.0).reshape(3, 3)
V = X[0]
B = X[None]
I = torch.tensor([0, 2, 1])  # noqa: E741  # as in index
M = X > 4

# Operator: what is called, its tensors, and the names of the arguments and of CUDA's wrapper.
NAMED = {
    "mm": (torch.mm, (X, X), ("self", "mat2"), "mm"),
    "bmm": (torch.bmm, (B, B), ("self", "mat2"), "bmm"),
    "addmm": (torch.addmm, (V, X, X), ("self", "mat1", "mat2"), "addmm"),
    "gather": (lambda x, i: x.gather(1, i), (X, I[None]), ("self", "index"), "gather"),
    "scatter": (
        lambda x, i, y: x.scatter(1, i, y),
        (X, I[None], X),
        ("self", "index", "src"),
        "scatter_src",
    ),
    "scatter_value": (
        lambda x, i: x.scatter(1, i, 2.0),
        (X, I[None]),
        ("self", "index"),
        "scatter_value",
    ),
    "scatter_add": (
        lambda x, i, y: x.scatter_add(1, i, y),
        (X, I[None], X),
        ("self", "index", "src"),
        "scatter_add",
    ),
    "cat": (lambda *xs: torch.cat(xs), (X, X, X), ("tensors", "tensors", "tensors"), "cat"),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (3,), w, b),
        (X, V, V),
        ("input", "weight", "bias"),
        "_native_layer_norm",
    ),
    "nll_loss": (
        lambda x, i, w: F.nll_loss(x, i, w),
        (X, I, V),
        ("self", "target", "weight"),
        "nll_loss_forward",
    ),
    "mm_out": (
        lambda x, y, o: torch.mm(x, y, out=o),
        (X, X, X),
        ("self", "mat2", "out"),
        "mm_out_out",
    ),
    "index_select_out": (
        lambda x, i, o: torch.index_select(x, 0, i, out=o),
        (X, I, torch.empty(3, 3)),
        ("self", "index", "out"),
        "out_index_select_out",
    ),
    "addmm_": (
        lambda x, y, z: x.addmm_(y, z),
        (X, X, X),
        ("self", "mat1", "mat2"),
        "addmm_",
    ),
}

ELEMENTWISE = {
    "add": (torch.add, (X, X)),
    "pow": (torch.pow, (X, X)),
    "logical_and": (torch.logical_and, (M, M)),
    "where": (torch.where, (M, X, X)),
    "mse_loss": (F.mse_loss, (X, X)),
    "ldexp": (torch.ldexp, (X, X)),
    "add_": (lambda x, y: x.add_(y), (X, X)),
    "add_out": (lambda x, y, o: torch.add(x, y, out=o), (X, X, X)),
    "exp_out": (lambda x, o: torch.exp(x, out=o), (X, X)),
    "foreach_add": (lambda x, y: torch._foreach_add([x, x], [y, y]), (X, X)),
    "index_put": (lambda x, y: x.__setitem__(I, y), (X, X)),
}


def placed(data, devices, tensors, slot):
    """The tensors on one device, but the one in `slot` elsewhere; and the two devices."""
    home = data.draw(st.sampled_from(devices))
    others = [torch.device("cpu"), *(d for d in devices if d != home)]
    away = data.draw(st.sampled_from(others))
    places = [away if k == slot else home for k in range(len(tensors))]
    # What is written to has to be a copy, also on the CPU.
    return home, away, [t.clone().to(p) for t, p in zip(tensors, places, strict=True)]


def rows(table):
    return [(name, slot) for name in table for slot in range(len(table[name][1]))]


# Dtypes without a tensor type of their own in Python.
UNNAMED = {torch.bfloat16: "BFloat16", torch.bool: "Bool", torch.complex64: "ComplexFloat"}


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize(("name", "slot"), rows(NAMED))
@given(data=st.data())
def test_kernel_names_the_argument_on_another_device(devices, name, slot, data):
    """A kernel names the argument that is elsewhere, and itself."""
    function, tensors, names, method = NAMED[name]
    home, away, tensors = placed(data, devices, tensors, slot)
    # Outputs are compared with first, then the arguments in order.
    order = sorted(range(len(names)), key=lambda k: names[k] != "out")
    first, second = order[:2]
    stranger, here, there = (second, home, away) if slot == first else (slot, away, home)
    kind = "CUDA" if home.type == "cuda" else home.type
    with pytest.raises(RuntimeError) as caught:
        function(*tensors)
    assert str(caught.value).splitlines()[0] == (
        f"Expected all tensors to be on the same device, but got {names[stranger]} is on {here}, "
        f"different from other tensors on {there} (when checking argument in method "
        f"wrapper_{kind}_{method})"
    )


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize(("name", "slot"), rows(ELEMENTWISE))
@given(data=st.data())
def test_an_elementwise_kernel_names_two_devices(devices, name, slot, data):
    """An elementwise kernel names the two devices, and has written nothing."""
    function, tensors = ELEMENTWISE[name]
    home, away, tensors = placed(data, devices, tensors, slot)
    before = [t.clone() for t in tensors]
    with pytest.raises(RuntimeError) as caught:
        function(*tensors)
    words = str(caught.value).splitlines()[0]
    pattern = r"Expected all tensors to be on the same device, but found at least two devices, "
    found = re.fullmatch(pattern + r"(\S+) and (\S+)!", words)
    assert found, words
    assert set(found.groups()) == {str(home), str(away)}
    # Nothing was written before the error was noticed.
    assert all(map(torch.equal, before, tensors))


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize("slot", range(2))
@given(data=st.data(), nested=st.booleans())
def test_masked_fill_names_the_devices_of_both(devices, slot, data, nested):
    *_, (x, mask) = placed(data, devices, [torch.ones(2, 2), torch.ones(2, 2) > 0], slot)
    if nested:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x, mask = (torch.nested.as_nested_tensor(tensor) for tensor in (x, mask))
    with pytest.raises(RuntimeError) as caught:
        x.masked_fill(mask, 1.0)
    assert str(caught.value).splitlines()[0] == (
        f"expected self and mask to be on the same device, but got mask on {mask.device} and self "
        f"on {x.device}"
    )


@pytest.mark.devices(3, distinct=True)
@given(data=st.data(), operator=st.sampled_from(["fill_", "masked_fill", "where"]))
def test_number_of_another_device_is_copied(devices, data, operator):
    """CUDA copies it or reads it, where other elementwise kernels refuse it."""
    home, away = data.draw(st.permutations([*devices, torch.device("cpu")]))[:2]
    if operator != "fill_" and home.type == "cpu":  # CUDA fills it only by fill_
        home = devices[0] if away != devices[0] else devices[1]
    x, number = torch.ones(3, device=home), torch.tensor(5.0, device=away)
    mask = torch.tensor([True, False, True], device=home)
    if operator == "fill_":
        found, expected = x.fill_(number), [5.0, 5.0, 5.0]
    elif operator == "masked_fill":
        found, expected = x.masked_fill(mask, number), [5.0, 1.0, 5.0]
    else:
        found, expected = torch.where(mask, number, x), [5.0, 1.0, 5.0]
    assert found.device == home
    assert found.tolist() == expected


def test_masked_fill_reads_no_number_of_a_device_for_the_cpu(devices):
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="masked_fill_: Expected inputs to be on same device"):
        x.masked_fill_(x > 0, torch.tensor(5.0, device=devices[0]))
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize("slot", range(3))
@given(data=st.data())
def test_block_diag_compares_with_its_first_matrix(devices, slot, data):
    home, away, tensors = placed(data, devices, [torch.ones(2, 2)] * 3, slot)
    first, other, index = (away, home, 1) if slot == 0 else (home, away, slot)
    with pytest.raises(RuntimeError) as caught:
        torch.block_diag(*tensors)
    assert str(caught.value).splitlines()[0] == (
        "torch.block_diag: input tensors must all be on the same device. Input 0 is on device "
        f"{first} and input {index} is on device {other}"
    )


@pytest.mark.devices(2, distinct=True)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.int16, *UNNAMED]))
def test_an_embedding_asks_for_integers_before_it_asks_for_a_device(devices, data, dtype):
    tables, indices = data.draw(st.permutations([*devices, torch.device("cpu")]))[:2]
    with pytest.raises(RuntimeError, match="scalar types: Long, Int; but got ") as caught:
        torch.nn.functional.embedding(
            torch.ones(2, dtype=dtype, device=indices), torch.ones(3, 2, device=tables)
        )
    found = torch.empty(0, dtype=dtype, device=indices).type()
    if dtype in UNNAMED:  # PyTorch's errors have C++'s name for these
        kind = {"cpu": "CPU", "cuda": "CUDA"}.get(indices.type, indices.type)
        found = f"{kind}{UNNAMED[dtype]}Type"
    assert f"but got {found} instead" in str(caught.value)
