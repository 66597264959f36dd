"""Attention: in one kernel where the CPU has it in one, in the CPU's steps elsewhere."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

import simgpu

FUSED = "_scaled_dot_product_flash_attention_for_cpu"
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@st.composite
def calls(draw):
    """Query, key and value, a mask or None, and the options."""
    batch, heads, size = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4])), 4
    length, others = draw(st.integers(0, 40)), draw(st.integers(1, 9))
    grouped = draw(st.booleans())
    groups = draw(st.sampled_from([g for g in (1, 2, 4) if g <= heads])) if grouped else heads
    lead = draw(st.sampled_from([2, 2, 1, 0]))  # how many dimensions are before heads and lengths
    dtype = draw(st.sampled_from(DTYPES))
    random = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def tensor(*shape):
        shape = shape[-2:] if lead == 0 else shape[-3:] if lead == 1 else shape
        return torch.randn(shape, generator=random).to(dtype)

    query = tensor(batch, heads, length, size)
    if lead == 2 and draw(st.booleans()):  # as a projection of (batch, length, heads * size) is
        query = query.transpose(1, 2).contiguous().transpose(1, 2)
    key, value = (tensor(batch, groups, others, size) for _ in range(2))
    mask = draw(
        st.sampled_from(
            [
                None,
                torch.randn(length, others, generator=random) > -1,
                torch.randn(1, others, generator=random).to(dtype),
                torch.randn(length, others, generator=random).to(dtype).requires_grad_(),
            ]
        )
    )
    options = {
        "is_causal": mask is None and draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.7, -1.0])),
        "enable_gqa": grouped and lead > 0,
    }
    return [query, key, value], mask, options


class Kernels(TorchDispatchMode):
    """The names of the operators that reach a kernel."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def results(tensors, mask, options):
    """The result, and the gradients of whatever asks for one.

    The gradient of a mask is None where there are no queries: PyTorch does not look at the mask
    then, on the CPU neither.
    """
    leaves = [tensor.requires_grad_() for tensor in tensors]
    leaves += [mask] if mask is not None and mask.requires_grad else []
    result = scaled_dot_product_attention(*tensors, mask, **options)
    total = result.float().sin().sum()
    return [result, *torch.autograd.grad(total, leaves, allow_unused=True)]


def moved(values, device):
    return [
        None if value is None else value.detach().to(device).requires_grad_(value.requires_grad)
        for value in values
    ]


@pytest.mark.without(
    "--async", reason="PyTorch's meta kernel gives dimensions of one element other strides"
)
@given(call=calls(), data=st.data())
def test_attention_has_the_bits_of_the_cpu_out_of_the_same_kernels(simulated, call, data):
    check_bits_and_kernels(*call, data.draw(st.sampled_from(simulated)))


@pytest.mark.parametrize("lead", [(1,), (2, 2)])
def test_without_queries_the_mask_has_a_gradient_where_the_cpu_has_one(simulated, lead):
    """Newer releases have none."""
    mask = torch.zeros(0, 1, requires_grad=True)
    tensors = [torch.ones(*lead, count, 4) for count in (0, 1, 1)]
    check_bits_and_kernels(tensors, mask, {}, simulated[1])


def check_bits_and_kernels(tensors, mask, options, device):
    *there, mask_there = moved([*tensors, mask], device)
    with Kernels() as of_the_cpu:
        expected = results(tensors, mask, options)
    with simgpu.trace() as trace:
        got = results(there, mask_there, options)
    assert [grad is None for grad in got] == [grad is None for grad in expected]
    assert got[1:4].count(None) == 0
    for here, other in zip(expected, got, strict=True):
        if here is None:
            continue
        assert other.device == there[0].device
        assert other.stride() == here.stride() or not here.numel()
        assert torch.equal(other.cpu().nan_to_num(7), here.nan_to_num(7))
    ops = [record.op for record in trace]
    for kernel in (FUSED, f"{FUSED}_backward"):
        assert (kernel in ops) == (kernel in of_the_cpu.names)
    choice = torch._fused_sdp_choice(*tensors, mask, **options)
    assert torch._fused_sdp_choice(*there, mask_there, **options) == choice


def ops_of(query, **options):
    with simgpu.trace() as trace:
        scaled_dot_product_attention(query, query, query, **options)
    return {record.op for record in trace}


def test_attention_is_fused_in_inference_mode_and_under_autocast(simulated):
    query = torch.randn(2, 2, 3, 4, device=simulated[1])
    with torch.inference_mode():
        assert ops_of(query.clone()) == {FUSED}
    with torch.autocast("simgpu", dtype=torch.bfloat16):
        assert scaled_dot_product_attention(query, query, query).dtype == torch.bfloat16
        assert FUSED in ops_of(query)


def test_attention_that_drops_out_is_in_steps_whatever_kernel_is_asked_for(simulated):
    query = torch.randn(2, 2, 3, 4, device=simulated[1])
    assert "_safe_softmax" in ops_of(query, dropout_p=0.5)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert "_safe_softmax" in ops_of(query.half(), dropout_p=0.5)


def test_a_program_chooses_the_kernel(simulated):
    query = torch.randn(2, 2, 3, 8, device=simulated[1]).half()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert ops_of(query) == {FUSED}
        with (
            pytest.warns(UserWarning, match="kernel not used because|dimensional"),
            pytest.raises(RuntimeError, match="No available kernel"),
        ):
            ops_of(query[0, 0])
    for other in (
        SDPBackend.MATH,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION],
    ):
        with sdpa_kernel(other):
            assert "_safe_softmax" in ops_of(query)


def test_fused_attention_has_no_second_derivative_as_on_the_cpu(simulated):
    for device in ("cpu", simulated[1]):
        query = torch.randn(2, 2, 3, 4, device=device, requires_grad=True)
        result = scaled_dot_product_attention(query, query, query)
        (grad,) = torch.autograd.grad(result.sin().sum(), query, create_graph=True)
        with pytest.raises(RuntimeError, match="attention_for_cpu_backward is not implemented"):
            grad.sum().backward()


@pytest.mark.parametrize("outer", [lambda f: f, torch.func.grad], ids=["alone", "of grad"])
def test_vmap_takes_steps_and_needs_no_rule_for_the_kernel(simulated, outer):
    def scalar(x):
        return scaled_dot_product_attention(x, x.cos(), x.sin()).sin().sum()

    x = torch.randn(3, 2, 2, 3, 4, dtype=torch.float64)
    got = torch.vmap(outer(scalar))(x.to(simulated[1]))
    expected = torch.stack([outer(scalar)(row) for row in x])
    torch.testing.assert_close(got.cpu(), expected)


def test_attention_says_what_does_not_fit(simulated):
    query = torch.randn(2, 2, 3, 4, device=simulated[1])
    for other in (query.cpu(), query.to(simulated[0])):
        with pytest.raises(RuntimeError, match=f"same device type.* key.device: {other.device}"):
            scaled_dot_product_attention(query, other, query)
        with pytest.raises(RuntimeError, match=f"devices, {query.device} and {other.device}"):
            scaled_dot_product_attention(query, query, query, other[0, 0, :, :3])
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        scaled_dot_product_attention(query, query.double(), query)
    with pytest.raises(RuntimeError, match=r"lengths of key and value.*key \(2, 2, 1, 4\)"):
        scaled_dot_product_attention(query, query[:, :, :1], query)
    with pytest.raises(RuntimeError, match="needs heads in key and value"):
        scaled_dot_product_attention(query, query[:, :0], query[:, :0], enable_gqa=True)
    assert scaled_dot_product_attention(*[query[:, :0]] * 3).shape == (2, 0, 3, 4)
