"""`scaled_dot_product_attention` is the operator that CUDA calls: for modes and counters.

Which one it is by the public queries, which test_attention_kernels.py compares with CUDA's rules.
"""

import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.backends import cuda as backends
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

import simgpu
from tests.support import attention

aten = torch.ops.aten
MATH, FLASH, EFFICIENT, CUDNN = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
QUERIES = {
    FLASH: backends.can_use_flash_attention.__name__,
    EFFICIENT: backends.can_use_efficient_attention.__name__,
    CUDNN: backends.can_use_cudnn_attention.__name__,
}
OPERATORS = {
    FLASH: "_scaled_dot_product_flash_attention",
    EFFICIENT: "_scaled_dot_product_efficient_attention",
    CUDNN: "_scaled_dot_product_cudnn_attention",
}
ORDERS = {
    "H100": [CUDNN, FLASH, EFFICIENT],
    "A100": [FLASH, EFFICIENT],
    "T4": [FLASH, EFFICIENT],
    "V100": [FLASH, EFFICIENT],
}
FLOAT, HALF, BFLOAT16, DOUBLE = torch.float32, torch.float16, torch.bfloat16, torch.float64


@st.composite
def cases(draw, dtypes=(FLOAT, HALF, BFLOAT16, DOUBLE), masks=True, sizes=(1, 4, 8, 16, 20)):
    """A case on the CPU, whose leaves ask for gradients or none, and whether heads are shared."""
    dtype = draw(st.sampled_from(dtypes))
    batch, heads = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4]))
    shared = draw(st.booleans())
    groups = draw(st.sampled_from([g for g in (1, 2, 4) if g <= heads])) if shared else heads
    rows, size = draw(st.integers(1, 40)), draw(st.sampled_from(sizes))
    columns = draw(st.just(rows) | st.integers(1, 40))
    of_value = draw(st.just(size) | st.sampled_from(sizes))
    random = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    training = draw(st.booleans())

    def tensor(heads, length, size):
        layout = draw(st.sampled_from(["dense", "projected", "with gaps"]))
        if layout == "projected":  # as (batch, length, heads * size) is
            made = torch.randn(batch, length, heads, size, generator=random).transpose(1, 2)
        elif layout == "with gaps":
            made = torch.randn(batch, heads, length + 1, size, generator=random)[:, :, 1:]
        else:
            made = torch.randn(batch, heads, length, size, generator=random)
        return made.to(dtype).detach().requires_grad_(training)

    kind = draw(st.sampled_from(["none", "bools", "row", "floats", "learned"])) if masks else "none"
    mask = {
        "none": None,
        "bools": torch.rand(rows, columns, generator=random) > 0.3,
        "row": torch.randn(1, columns, generator=random).to(dtype),
        "floats": torch.randn(batch, 1, rows, columns, generator=random).to(dtype),
        "learned": torch.randn(rows, columns, generator=random).to(dtype).requires_grad_(training),
    }[kind]
    return attention.Case(
        tensor(heads, rows, size),
        tensor(groups, columns, size),
        tensor(groups, columns, of_value),
        mask,
        mask is None and draw(st.booleans()),
        draw(st.sampled_from([None, 0.0, 0.7, -1.0])),
    ), shared


def computed(case, there, shared=False, **options):
    """The output on a device, and the gradients where some are asked for."""
    out = scaled_dot_product_attention(
        *(there.query, there.key, there.value, there.mask),
        is_causal=case.is_causal, scale=case.scale, enable_gqa=shared, **options,
    )  # fmt: skip
    grad = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    if not out.requires_grad:
        return grad, [out]
    return grad, [out, *torch.autograd.grad(out, there.leaves(), grad.to(out.device))]


def strides(tensor):
    """Of the dimensions that have several elements."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def rule(model, case, shared):
    """The backend of a call, by the public queries."""
    given = case.query, case.key, case.value, case.mask, 0.0, case.is_causal, shared
    params = backends.SDPAParams(*given)
    for kernel in ORDERS[model]:
        if getattr(backends, QUERIES[kernel])(params):
            return kernel
    return MATH


def as_given_to(kernel, case):
    """PyTorch hands cuDNN, which takes no infinity, a mask of the lowest float16."""
    if kernel is not CUDNN or case.mask is None or case.mask.dtype is not torch.bool:
        return case
    return replace(case, mask=torch.zeros(case.mask.shape).masked_fill(~case.mask, -65504.0))


@given(case=cases(), model=st.sampled_from(sorted(ORDERS)))
def test_the_operator_is_that_of_the_rule_and_computes_attention(case, model):
    case, shared = case
    with simgpu.as_cuda(1, model=model):
        there = case.moved("cuda")
        kernel = rule(model, there, shared)
        given = there.query, there.key, there.value, there.mask, 0.0, case.is_causal
        choice = torch._fused_sdp_choice(*given, scale=case.scale, enable_gqa=shared)
        with attention.Operators() as seen, simgpu.trace() as trace:
            grad, got = computed(case, there, shared)
        got = [each.cpu() for each in got]
    assert choice == kernel.value
    traced = {record.op for record in trace}
    for name in [OPERATORS.get(kernel, "_safe_softmax")]:
        assert name in seen.names
        assert name in traced
        backward = f"{name}_backward" in seen.names
        assert backward == (kernel is not MATH and len(got) > 1)
    for other, name in OPERATORS.items():
        assert (name in seen.names) == (kernel is other)
    attention.check(as_given_to(kernel, case), got, grad)


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT, CUDNN])
def test_flop_counters_see_the_fused_operator(backend):
    with simgpu.as_cuda(1, model="H100"), sdpa_kernel(backend):
        query = torch.ones(1, 2, 16, 8, device="cuda", dtype=HALF, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            out = scaled_dot_product_attention(query, query, query)
        assert counter.get_total_flops() == 16384
        with FlopCounterMode(display=False) as counter:
            out.sum().backward()
        assert counter.get_total_flops() == 2.5 * 16384


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT, CUDNN])
@given(case=cases(dtypes=[HALF], masks=False))
def test_results_have_the_strides_of_the_meta_kernels(backend, case):
    """Which are PyTorch's description of CUDA's results."""
    query, key, value = (case[0].query, case[0].key, case[0].key)
    query, key, value = (torch.cat([each] * 8, -1).detach() for each in (query, key, value))
    operator = getattr(aten, OPERATORS[backend]).default
    extra = [] if backend is FLASH else [None, True]

    def called(*tensors):
        return operator(*tensors, *extra)

    wanted = called(*(each.to("meta") for each in (query, key, value)))
    with simgpu.as_cuda(1, model="H100"):
        got = called(*(each.to("cuda") for each in (query, key, value)))
        for here, there in zip(wanted, got, strict=True):
            if isinstance(here, torch.Tensor):
                wanted_form = here.shape, here.dtype, strides(here)
                assert (there.shape, there.dtype, strides(there)) == wanted_form
            else:
                assert here == there


@given(case=cases(dtypes=[HALF]), model=st.sampled_from(["H100", "A100", "T4"]))
def test_a_kernel_that_takes_no_call_is_named_with_its_reason(case, model):
    case, shared = case
    with simgpu.as_cuda(1, model=model):
        there = case.moved("cuda")
        given = there.query, there.key, there.value, there.mask, 0.0, case.is_causal, shared
        params = backends.SDPAParams(*given)
        for kernel, query in QUERIES.items():
            with sdpa_kernel(kernel), warnings.catch_warnings(record=True) as asked:
                warnings.simplefilter("always")
                taken = getattr(backends, query)(params, True)
            with sdpa_kernel(kernel), warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                if taken:
                    computed(case, there, shared)
                    continue
                with pytest.raises(RuntimeError, match=r"^No available kernel\. Aborting"):
                    computed(case, there, shared)
            texts = [str(warning.message) for warning in seen]
            assert "Memory efficient kernel not used because:" in texts
            assert "Flash attention kernel not used because:" in texts
            assert "cuDNN attention kernel not used because:" in texts
            assert str(asked[0].message) in texts


SEQUENCES = torch.tensor([0, 3, 8], dtype=torch.int32)  # where two of them begin and end


def flash_backward(starts):
    def backward(grad, query, key, value, out, sums):
        device = query.device
        starts_there = None if starts is None else starts.to(device)
        ends = (starts_there, starts_there, 8, 8, 0.0, False)
        state = torch.zeros(2, dtype=torch.uint64, device=device)
        return aten._flash_attention_backward(
            grad, query, key, value, out, sums, *ends, state, state
        )

    return backward


def efficient_backward(grad, query, key, value, out, sums):
    zero = torch.zeros((), dtype=torch.int64, device=query.device)
    made = (out, None, None, 8, 8, sums, 0.0, zero, zero, 0, False)
    return aten._efficient_attention_backward(grad, query, key, value, None, *made)


WHOLE = (2, 8, 2, 8), (2, 2, 8)
BACKWARD = {
    "flash": (flash_backward(None), *WHOLE),
    "flash of sequences": (flash_backward(SEQUENCES), (8, 2, 8), (2, 8)),
    "efficient": (efficient_backward, *WHOLE),
}


@pytest.mark.parametrize("spoiled", range(6))
@pytest.mark.parametrize("name", BACKWARD)
def test_backward_pass_refuses_tensors_of_another_call(name, spoiled):
    """The CPU's kernel would read past their ends."""
    backward, shape, of_sums = BACKWARD[name]
    with simgpu.devices(1) as (device,):
        tensors = [torch.ones(shape, dtype=HALF, device=device) for _ in range(5)]
        tensors.append(torch.ones(of_sums, device=device))
        assert [grad.shape for grad in backward(*tensors)[:3]] == [torch.Size(shape)] * 3
        length = {5: tensors[5].dim() - 1}.get(spoiled, len(shape) - 3)
        tensors[spoiled] = tensors[spoiled].narrow(length, 0, 2)
        with pytest.raises((RuntimeError, IndexError)):
            backward(*tensors)


@given(length=st.integers(1, 70), heads=st.integers(1, 2))
def test_efficient_attention_keeps_infinity_behind_each_row(length, heads):
    """Rows of the logsumexp are padded to whole blocks of 32, as an H100 was seen to do."""
    with simgpu.devices(1):
        query = torch.zeros(1, heads, length, 4, device="simgpu")
        call = aten._scaled_dot_product_efficient_attention
        sums = call(query, query, query, None, compute_log_sumexp=True)[1].cpu()
    assert sums.shape == (1, heads, (length + 31) // 32 * 32)
    assert sums[..., :length].isfinite().all()
    assert (sums[..., length:] == float("inf")).all()
