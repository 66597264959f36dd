"""Autocast: the dtype in which every operator runs.

What an operator gives under autocast is computed on the CPU without autocast, from arguments that
are cast by hand as the operator's policy says.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from simgpu._ops.autocast import OVERLOAD_WITH_DTYPE, POLICIES, Policy
from tests.support import strategies
from tests.support.autocast_calls import CALLS, ONLY_ON_DEVICES
from tests.support.observe import plain

HALVES = (torch.float16, torch.bfloat16)
LOWER = st.sampled_from(HALVES)
CASTABLE = (torch.float32, *HALVES)


# CUDA's lists in the installed PyTorch: some releases have operators that others lack.
CUDAS = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
HERE = {name for name in POLICIES if f"aten::{name}" in CUDAS}
# PyTorch 2.15 says of some operators that they will go.
pytestmark = pytest.mark.filterwarnings(
    "ignore:at..(frobenius|nuclear)_norm is deprecated", "ignore:torch.chain_matmul is deprecated"
)


def operator(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def mapped(arguments, function):
    """Arguments of an operator with `function` applied to every tensor, also in lists."""

    def one(a):
        return function(a) if isinstance(a, torch.Tensor) else a

    return tuple([*map(one, a)] if isinstance(a, list) else one(a) for a in arguments)


def floats(arguments):
    found = []
    mapped(arguments, lambda x: found.append(x) if x.is_floating_point() else None)
    return found


def results(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def by_hand(name, arguments, lower):
    """The operator without autocast, its arguments cast as its policy says."""
    policy = POLICIES[name]
    tensors = floats(arguments)
    target = {Policy.LOWER_PRECISION: lower, Policy.FLOAT32: torch.float32}.get(policy)
    if policy is Policy.WIDEST:
        target = torch.float32 if any(x.dtype is torch.float32 for x in tensors) else lower
    if target is None and tensors[0].dtype in CASTABLE:
        op = operator(OVERLOAD_WITH_DTYPE.get(name, name))
        return op(*arguments, dtype=torch.float32)
    cast = mapped(arguments, lambda x: x.to(target) if x.dtype in CASTABLE else x)
    return operator(name)(*cast)


# Devices have one kernel for what the CPU does in several steps, each rounded to `lower`.
IN_ONE_KERNEL = {"gru_cell", "lstm_cell", "scaled_dot_product_attention"}


def rounding(name, lower, device):
    """How far two ways of computing `name` may differ; torch's own bounds for most operators."""
    if name not in IN_ONE_KERNEL and device.type != "cuda":  # whose cells are one kernel each
        return {}
    return dict.fromkeys(("atol", "rtol"), 8 * torch.finfo(lower).eps)


def drawn(data, name, dtypes):
    """Arguments for `name` on the CPU; every tensor has one of `dtypes`."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))

    def t(*shape):
        x = torch.rand(shape, generator=generator) * 0.8 + 0.1
        return x.to(data.draw(st.sampled_from(dtypes)))

    def i(high, *shape):
        return torch.randint(high, shape, generator=generator)

    return CALLS[name](t, i)


def there(arguments, device, gradients=False):
    """Copies of `arguments` on `device`."""
    copies = mapped(arguments, lambda x: x.detach().to(device, copy=True))
    for x in floats(copies):
        x.requires_grad_(gradients)
    return copies


@pytest.mark.parametrize("name", sorted(HERE & set(CALLS)))
@strategies.fewer_examples
@given(data=st.data(), lower=LOWER)
def test_operators_run_in_the_dtype_of_their_policy(devices, name, data, lower):
    """Values, dtypes and gradients, for arguments in any mixture of dtypes that CUDA takes.

    The CPU computes as ever meanwhile.
    """
    device = data.draw(st.sampled_from(devices))
    mixture = (torch.float32, lower) if POLICIES[name] is Policy.WIDEST else CASTABLE
    arguments = drawn(data, name, data.draw(st.sampled_from((mixture, (torch.float64,)))))
    here, moved = there(arguments, "cpu", True), there(arguments, device, True)
    expected = results(by_hand(name, here, lower))
    narrow = drawn(data, name, (torch.float32,))
    on_the_host = results(operator(name)(*narrow))
    with torch.autocast(device.type, dtype=lower):
        got = results(operator(name)(*moved))
        meanwhile = results(operator(name)(*narrow))
    assert [(x.dtype, plain(x)) for x in meanwhile] == [(x.dtype, plain(x)) for x in on_the_host]
    assert [x.dtype for x in got] == [x.dtype for x in expected]
    assert {x.device for x in got} == {device}
    bound = rounding(name, lower, device)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x.cpu(), y, **bound)
    for outs in (expected, got):
        sum(x.double().sum() for x in outs if x.requires_grad).backward()
    for x, y in zip(floats(moved), floats(here), strict=True):
        assert x.grad.dtype is x.dtype
        torch.testing.assert_close(x.grad.cpu(), y.grad, **bound)


def test_cpu_scalar_is_not_cast(devices):
    """A CPU tensor without dimensions may take part: it is not cast and makes nothing wider."""
    x = torch.ones(3, device=devices[0], dtype=torch.float16)
    with torch.autocast(devices[0].type):
        assert torch.atan2(x, torch.tensor(1.0)).dtype is torch.float16


def test_the_callers_dtype_is_kept(devices):
    x = torch.ones(3, 4, device=devices[0])
    with torch.autocast(devices[0].type):
        assert x.sum(dtype=torch.float16).dtype is torch.float16
        assert x.half().softmax(1, torch.float16).dtype is torch.float16
        assert x.half().softmax(1, None).dtype is torch.float32


def test_binary_cross_entropy_is_refused(devices):
    x = torch.full((3,), 0.5, device=devices[0])
    with (
        torch.autocast(devices[0].type),
        pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"),
    ):
        functional.binary_cross_entropy(x, x)
    assert functional.binary_cross_entropy(x, x).dtype is torch.float32


@given(lower=LOWER)
def test_two_half_dtypes_are_refused_by_a_widest_policy(devices, lower):
    other = HALVES[lower is HALVES[0]]
    x = torch.ones(3, device=devices[0])
    with (
        torch.autocast(devices[0].type, dtype=lower),
        pytest.raises(RuntimeError, match="Unexpected floating ScalarType in at::autocast"),
    ):
        torch.dot(x.to(other), x.to(lower))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex64])
def test_autocast_takes_wide_dtypes(devices, dtype):
    """Without a warning, and casts to it."""
    x = torch.ones(2, 2, device=devices[0])
    with torch.autocast(devices[0].type, dtype=dtype):
        assert (x @ x).dtype is dtype
        assert (x.half() @ x).dtype is dtype


def test_every_operator_of_a_policy_is_called():
    called = {*CALLS, *ONLY_ON_DEVICES, "binary_cross_entropy"}
    assert called >= HERE
    assert called <= set(POLICIES)
