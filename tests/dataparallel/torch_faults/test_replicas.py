"""Faults 1, 6, 10, 11, 16, 20 and 21: what a replica is made of, and where its gradients go."""

import contextlib

import pytest
import torch
import torch.cuda.comm
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from tests.dataparallel.torch_faults.sides import BOTH, OURS, THEIRS, parallel, reported, rows
from tests.support import strategies
from tests.support.observe import plain, values


class Listed(nn.Module):
    """Parameters of its own, in a ParameterList and in a ParameterDict."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.ones(2))
        self.several = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(2)])
        self.named = nn.ParameterDict({"key": nn.Parameter(torch.ones(2))})

    def forward(self, x):
        return x * self.own + sum(self.several) + self.named["key"]


def counts(replica):
    lists = [replica, replica.several, replica.named]
    return [len(list(module.parameters())) for module in lists]


@pytest.mark.devices(4)
def test_fault_01_replicas_have_no_parameters(devices):
    """Theirs lists none, without grad mode those of the first replica; ours lists all of them."""
    listed = Listed().to(devices[0])
    expected = {
        (THEIRS, True): [[0, 0, 0]] * 4,
        (THEIRS, False): [[4, 2, 1]] + [[0, 0, 0]] * 3,
        (OURS, True): [[4, 2, 1]] * 4,
        (OURS, False): [[4, 2, 1]] * 4,
    }
    for (side, grad), seen in expected.items():
        with torch.set_grad_enabled(grad):
            replicas = side.functions.replicate(listed, devices, detach=not grad)
        assert [counts(replica) for replica in replicas] == seen
        with contextlib.nullcontext() if seen[-1][0] else pytest.raises(StopIteration):
            assert next(replicas[-1].parameters()).device == devices[-1]


@pytest.mark.devices(4)
def test_fault_06_unused_parameters_get_zeros(devices):
    """Theirs cannot be told from a gradient that is zero; ours is None, as without replicas."""
    seen = []
    for side in BOTH:
        model = parallel(side, devices, lambda replica, x: x * replica.weight)
        model.module.unused = nn.Parameter(torch.ones(3, device=devices[0]))
        model(rows(8)).sum().backward()
        assert plain(model.module.weight.grad) == plain(rows(8).sum(0))
        seen.append(model.module.unused.grad)
    assert plain(seen[0]) == [0, 0, 0]
    assert seen[1] is None


@given(data=st.data(), use=st.lists(st.booleans(), min_size=1, max_size=4))
def test_fault_06_a_gradient_is_there_if_one_replica_used_the_parameter(devices, data, use):
    """Replica r uses the parameter or not; its gradient is the sum over those that do."""
    use = use[: len(devices)]
    targets = data.draw(strategies.device_lists(devices, min_size=len(use)))[: len(use)]
    model = parallel(
        OURS,
        targets,
        lambda replica, x: x * replica.weight + (replica.sometimes if use[int(x[0, 0])] else 0),
    )
    model.module.sometimes = nn.Parameter(torch.ones(2, device=targets[0]))
    x = torch.arange(float(len(use))).view(-1, 1).expand(-1, 2)
    model(x).sum().backward()
    grad = model.module.sometimes.grad
    assert (None if grad is None else plain(grad)) == ([sum(use)] * 2 if any(use) else None)


@pytest.mark.devices(4)
def test_fault_10_parameters_lose_channels_last(devices):
    """On every device but the first one, where theirs is the original itself."""
    conv = nn.Conv2d(2, 3, 3).to(devices[0]).to(memory_format=torch.channels_last)
    seen = [
        [
            replica.weight.is_contiguous(memory_format=torch.channels_last)
            for replica in side.functions.replicate(conv, devices)
        ]
        for side in BOTH
    ]
    assert seen == [[True, False, False, False], [True] * 4]


@given(data=st.data(), shape=st.lists(st.integers(2, 4), min_size=1, max_size=4))
def test_fault_10_strides_are_kept_there_and_back(devices, data, shape):
    """Any order of dimensions in memory, on each replica and in the gradient."""
    targets = data.draw(strategies.device_lists(devices))
    order = data.draw(st.permutations(range(len(shape))))
    module = nn.Module()
    lying = values(tuple(shape), "float32", span=9).permute(order)
    for name in "ab":
        module.register_parameter(name, nn.Parameter(lying.clone().to(targets[0])))
    assert module.a.stride() == lying.stride()
    replicas = dataparallel.replicate(module, targets)
    for replica in replicas:
        assert replica.a.stride() == module.a.stride()
        assert plain(replica.a) == plain(module.a)
    sum(replica.a.sum().to(targets[0]) for replica in replicas).backward()
    assert module.a.grad.stride() == module.a.stride()
    assert module.b.grad is None


class Odd(nn.Module):
    """A complex parameter after an odd number of real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.ones(3))
        self.complex = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, x):
        return x * self.complex + self.real.sum()


@pytest.mark.devices(4)
def test_fault_11_complex_tensors(devices):
    """The last dimension is taken for real and imaginary parts; buckets are cut between them."""
    x = values((4, 3), "complex64").to(devices[0])
    with pytest.raises(RuntimeError, match="last dimension of size 2"):
        THEIRS.functions.scatter(x, devices, -1)
    with pytest.raises(RuntimeError, match="storage_offset divisible by 2"):
        THEIRS.functions.replicate(Odd().to(devices[0]), devices)

    chunks = OURS.functions.scatter(x, devices, -1)
    assert [plain(chunk) for chunk in chunks] == [plain(chunk) for chunk in x.chunk(3, -1)]
    assert plain(OURS.functions.gather(chunks, devices[0], -1)) == plain(x)
    for replica, device in zip(OURS.functions.replicate(Odd().to(devices[0]), devices), devices,
                               strict=True):  # fmt: skip
        assert replica.complex.device == device
        assert plain(replica.complex) == [1, 1]


class Bound(nn.Module):
    """Keeps a method of its own and a plain list of submodules: both lead to the original."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.run = self.apply_linear if how == "method" else [self.linear][0].__call__

    def apply_linear(self, x):
        return self.linear(x)

    def forward(self, x):
        return self.run(x)


@pytest.mark.devices(4, distinct=True)  # it takes another device to be on the wrong one
@pytest.mark.parametrize("how", ["method", "submodule"])
def test_fault_16_what_is_bound_to_the_original_stays_there(devices, how):
    """No replica can repair this: both raise, and the text of ours names replica and device."""
    for side in BOTH:
        model = side.DataParallel(Bound(how).to(devices[0]), devices)
        with pytest.raises(RuntimeError, match=r"(?s)in replica 1 on device .*same device"):
            model(rows(8))
    with pytest.raises(RuntimeError, match=rf"in replica 1 on device {devices[1].index}\."):
        model(rows(8))
    assert reported(OURS, devices, lambda replica, x: replica.weight.device, rows(8)) == devices


class Counting(nn.Module):
    """Counts its calls in a buffer of integers, of which it has one or two."""

    def __init__(self, integers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        if integers == 2:
            self.register_buffer("other", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.count += 1
        return x * self.weight


@pytest.mark.parametrize("integers", [1, 2])
@pytest.mark.parametrize("slots", [[0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]])
def test_fault_20_a_buffer_of_its_own_dtype_is_counted_twice(devices, slots, integers):
    """Theirs hands the module's own buffer to each replica there; ours, to the first one only."""
    devices = [devices[slot % len(devices)] for slot in slots]
    own = devices.count(devices[0])
    for side, counted in ((THEIRS, own if integers == 1 else 1), (OURS, 1)):
        model = side.DataParallel(Counting(integers).to(devices[0]), devices)
        model(rows(len(slots), 2))
        assert model.module.count.item() == counted


NOT_OF_NCCL = [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e8m0fnu]


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("dtype", NOT_OF_NCCL)
def test_fault_21_dtypes_that_nccl_does_not_know(devices, dtype):
    """Theirs replicates no such buffer, and adds no such tensors; ours copies and adds without."""
    module = nn.Module()
    module.register_buffer("kept", torch.ones(2).to(dtype))
    module.to(devices[0])
    with pytest.raises(RuntimeError, match="Unconvertible NCCL type"):
        THEIRS.functions.replicate(module, devices)
    for replica, device in zip(OURS.functions.replicate(module, devices), devices, strict=True):
        assert (replica.kept.device, replica.kept.dtype) == (device, dtype)
        assert replica.kept.float().tolist() == [1, 1]


@pytest.mark.devices(2, distinct=True)
def test_fault_21_sums_that_nccl_refuses(devices):
    """Of two dtypes, of int16 and of complex numbers."""
    for first, second in (
        (torch.float32, torch.float16),
        (torch.int64, torch.float32),
        (torch.int16, torch.int16),
        (torch.complex64, torch.complex64),
    ):
        parts = [
            torch.ones(2, dtype=dtype, device=device)
            for dtype, device in zip((first, second), devices, strict=True)
        ]
        with pytest.raises(RuntimeError, match=r"same Tensor dtype|Unconvertible NCCL type"):
            torch.cuda.comm.reduce_add(parts, devices[0].index)
        total = dataparallel.comm.reduce_add(parts, devices[0])
        assert total.dtype == torch.promote_types(first, second)
        assert total.tolist() == [2, 2]
