"""Which of CUDA's fused kernels of attention takes a call: by the queries, and where it is forced.

The expectations are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
"""

import warnings

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.backends import cuda as backends
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.torch_version import TorchVersion

import simgpu

FLASH, EFFICIENT, CUDNN = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
NAMES = {FLASH: "flash", EFFICIENT: "efficient", CUDNN: "cudnn"}
# Efficient attention shares heads, and every kernel a single one, whether it is asked to or not.
SHARES_HEADS = TorchVersion(torch.__version__) >= "2.14"
HALF, BFLOAT16, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def tensors(dtype, *shape, training=False):
    return [torch.randn(shape, device="cuda").to(dtype).requires_grad_(training) for _ in range(3)]


def says(kernel, query, key, value, mask=None, dropout=0.0, causal=False, gqa=False, debug=False):
    params = backends.SDPAParams(query, key, value, mask, dropout, causal, gqa)
    with sdpa_kernel(kernel):
        return getattr(backends, f"can_use_{NAMES[kernel]}_attention")(params, debug)


def does(kernel, query, key, value, mask=None, dropout=0.0, causal=False, gqa=False):
    """Whether the call is computed where the program allows only this kernel."""
    with warnings.catch_warnings(record=True) as seen, sdpa_kernel(kernel):
        warnings.simplefilter("always")
        try:
            scaled_dot_product_attention(query, key, value, mask, dropout, causal, enable_gqa=gqa)
        except RuntimeError as error:
            refused = str(error)
        else:
            return True
    assert refused == "No available kernel. Aborting execution."
    texts = [str(warning.message) for warning in seen]
    assert "Flash attention kernel not used because:" in texts
    return False


@pytest.mark.parametrize(
    ("model", "kernel", "dtypes"),
    [
        ("A100", FLASH, [HALF, BFLOAT16]),
        ("A100", CUDNN, [HALF, BFLOAT16]),
        ("A100", EFFICIENT, [HALF, BFLOAT16, FLOAT]),
        ("T4", FLASH, []),
        ("T4", CUDNN, []),
        ("T4", EFFICIENT, [HALF, FLOAT]),
    ],
)
def test_kernel_takes_dtypes(model, kernel, dtypes):
    with simgpu.as_cuda(1, model=model):
        assert backends.is_flash_attention_available()
        for dtype in (HALF, BFLOAT16, FLOAT, DOUBLE):
            call = tensors(dtype, 1, 2, 8, 16)
            assert says(kernel, *call) == does(kernel, *call) == (dtype in dtypes)


@pytest.mark.parametrize(
    ("model", "kernel", "dtype", "sizes"),
    [
        ("A100", FLASH, HALF, {1: True, 8: True, 250: True, 256: True, 257: False, 264: False}),
        ("A100", CUDNN, HALF, {1: False, 8: True, 12: False, 128: True, 136: False}),
        ("A100", EFFICIENT, HALF, {1: False, 4: False, 8: True, 264: True}),
        ("A100", EFFICIENT, FLOAT, {1: False, 4: True, 6: False, 264: True}),
        ("T4", EFFICIENT, HALF, {1: False, 4: False, 8: True}),
        ("V100", EFFICIENT, FLOAT, {1: True, 6: True}),
        ("P100", EFFICIENT, HALF, {1: True, 6: True}),
        ("K80", EFFICIENT, HALF, {8: False}),
        ("H100", EFFICIENT, HALF, {4: False, 8: True}),
    ],
)
def test_kernel_takes_sizes_of_heads(model, kernel, dtype, sizes):
    with simgpu.as_cuda(1, model=model):
        for size, taken in sizes.items():
            call = tensors(dtype, 1, 1, 3, size)
            assert says(kernel, *call) == does(kernel, *call) == taken


@pytest.mark.parametrize(
    ("model", "kernel", "key", "value", "taken"),
    [
        ("A100", FLASH, 16, 8, False),
        ("A100", EFFICIENT, 16, 8, True),
        ("A100", EFFICIENT, 16, 4, False),
        ("A100", EFFICIENT, 16, 0, False),
        ("A100", CUDNN, 16, 8, True),
        ("A100", CUDNN, 192, 128, False),
        ("H100", CUDNN, 192, 128, True),
        ("B200", CUDNN, 192, 128, True),
        ("H100", CUDNN, 128, 192, False),
        ("H100", CUDNN, 192, 64, False),
    ],
)
def test_kernel_takes_values_of_another_size(model, kernel, key, value, taken):
    with simgpu.as_cuda(1, model=model):
        query, _, _ = tensors(HALF, 1, 1, 3, key)
        call = query, query.clone(), torch.randn(1, 1, 3, value, device="cuda").half()
        assert says(kernel, *call) == does(kernel, *call) == taken


@given(
    kernel=st.sampled_from([FLASH, EFFICIENT, CUDNN]),
    heads=st.tuples(*[st.integers(1, 6)] * 3) | st.integers(1, 6).map(lambda n: (2 * n, n, n)),
    batches=st.tuples(*[st.integers(1, 2)] * 3) | st.just((2, 2, 2)),
    gqa=st.booleans(),
)
@example(kernel=CUDNN, heads=(6, 3, 2), batches=(1, 1, 1), gqa=True)
@example(kernel=FLASH, heads=(6, 3, 2), batches=(1, 1, 1), gqa=True)
@example(kernel=FLASH, heads=(4, 1, 1), batches=(2, 2, 2), gqa=False)
@example(kernel=FLASH, heads=(4, 1, 1), batches=(2, 2, 2), gqa=True)
def test_kernel_takes_numbers_of_heads_and_batches(kernel, heads, batches, gqa):
    queries, keys, values = heads
    taken = queries == keys == values or (SHARES_HEADS and keys == values == 1)
    if gqa and (SHARES_HEADS or kernel is not EFFICIENT):
        shared = queries % keys == queries % values == 0
        taken = taken or (shared and (keys == values or kernel is CUDNN))
    with simgpu.as_cuda(1, model="H100"):
        call = [
            torch.ones(b, h, 2, 8, device="cuda").half()
            for b, h in zip(batches, heads, strict=True)
        ]
        reported = says(kernel, *call, gqa=gqa)
        assert reported == does(kernel, *call, gqa=gqa) == (taken and len(set(batches)) == 1)


@given(
    kernel=st.sampled_from([FLASH, EFFICIENT, CUDNN]),
    size=st.sampled_from([1, 8]),
    apart=st.sampled_from([None, "query", "key", "value", "mask"]),
)
@example(kernel=FLASH, size=1, apart="value")
@example(kernel=EFFICIENT, size=1, apart="value")
def test_the_last_dimension_is_contiguous(kernel, size, apart):
    """Of a mask too. To flash attention and cuDNN it is all one where heads have size 1."""

    def made(name, *shape):
        gap = 2 if name == apart else 1
        return torch.ones(*shape[:-1], gap * shape[-1], device="cuda").half()[..., ::gap]

    taken = apart is None or (kernel is FLASH and apart != "mask" and size == 1)
    with simgpu.as_cuda(1, model="P100" if kernel is EFFICIENT else "H100"):
        call = {name: made(name, 1, 2, 4, size) for name in ("query", "key", "value")}
        if kernel is not FLASH:
            call["mask"] = made("mask", 4, 4)
        if kernel is CUDNN and size == 1:
            taken = False
        elif apart not in call:
            taken = True
        assert says(kernel, **call) == does(kernel, **call) == taken


@given(kernel=st.sampled_from([FLASH, EFFICIENT, CUDNN]), place=st.integers(0, 16))
def test_kernel_takes_alignments(kernel, place):
    """Efficient attention of newer releases takes no tensor that is not aligned."""
    with simgpu.as_cuda(1, model="A100"):
        query, key, _ = tensors(HALF, 1, 1, 2, 8)
        value = torch.ones(32, device="cuda").half()[place:][:16].view(1, 1, 2, 8)
        taken = place % 8 == 0 or not (SHARES_HEADS and kernel is EFFICIENT)
        assert says(kernel, query, key, value) == does(kernel, query, key, value) == taken


def test_cudnn_takes_no_deterministic_call():
    with simgpu.as_cuda(1, model="A100"):
        call = tensors(HALF, 1, 2, 8, 16)
        try:
            torch.use_deterministic_algorithms(True)
            assert [says(kernel, *call) for kernel in NAMES] == [True, True, False]
            torch.use_deterministic_algorithms(True, warn_only=True)
            assert all(says(kernel, *call) for kernel in NAMES)
        finally:
            torch.use_deterministic_algorithms(False)


def test_kernels_take_no_mixed_dtypes():
    with simgpu.as_cuda(1, model="A100"):
        call = tensors(HALF, 1, 2, 8, 16)
        for place in range(3):
            mixed = [each.bfloat16() if n == place else each for n, each in enumerate(call)]
            assert not any(says(kernel, *mixed) for kernel in NAMES)


@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=4) | st.just([2, 3, 2, 2]),
    training=st.booleans(),
)
def test_cudnn_takes_masks(shape, training):
    """Of two or four dimensions, each whole or 1, and without a gradient."""
    whole = (2, 3, 2, 2)
    fits = all(size in (1, full) for size, full in zip(shape[::-1], whole[::-1], strict=False))
    with simgpu.as_cuda(1, model="H100"):
        mask = torch.zeros(shape, device="cuda").half().requires_grad_(training)
        reported = says(CUDNN, *tensors(HALF, *whole[:3], 8), mask)
    assert reported == (fits and len(shape) in (2, 4) and not training)


@pytest.mark.parametrize(
    ("dropout", "query", "key", "taken"),
    [
        (0.0, 1, 2, True),
        (0.5, 1, 2, False),
        (0.5, 2, 2, True),
        (0.0, 2, 1, False),
        (0.0625, 2, 2, True),
        (0.1, 2, 2, False),
    ],
)
def test_cudnn_takes_lengths_and_dropout(dropout, query, key, taken):
    with simgpu.as_cuda(1, model="H100"):
        (asks, _, _), (keys, values, _) = (tensors(HALF, 1, 1, n, 8) for n in (query, key))
        assert says(CUDNN, asks, keys, values, dropout=dropout) == taken
        assert does(CUDNN, asks, keys, values, dropout=dropout) == taken


@given(
    kernel=st.sampled_from([FLASH, EFFICIENT, CUDNN]),
    heads=st.integers(0, 2),
    lengths=st.tuples(*[st.sampled_from([0, 2])] * 2),
    dims=st.tuples(*[st.integers(3, 4)] * 3),
    gqa=st.booleans(),
)
@example(kernel=EFFICIENT, heads=0, lengths=(2, 2), dims=(4, 4, 4), gqa=True)
def test_kernels_need_four_dimensions_and_a_length(kernel, heads, lengths, dims, gqa):
    with simgpu.as_cuda(1, model="H100"):
        call = [
            torch.ones((1, heads, length, 8)[-n:], device="cuda").half()
            for length, n in zip((*lengths, lengths[1]), dims, strict=True)
        ]
        assert says(kernel, *call, gqa=gqa) == (dims == (4, 4, 4) and 0 not in lengths)


def test_kernel_takes_masks_and_causal_calls():
    with simgpu.as_cuda(1, model="A100"):
        query, key, value = tensors(HALF, 1, 2, 8, 16)
        mask = torch.ones(8, 8, dtype=torch.bool, device="cuda")
        for kernel, taken in {FLASH: False, EFFICIENT: True, CUDNN: True}.items():
            assert says(kernel, query, key, value, mask) == taken
            assert does(kernel, query, key, value, mask) == taken
        assert not does(FLASH, query[:, :, :5], key, value, causal=True)
        assert does(EFFICIENT, query[:, :, :5], key, value, causal=True)


@pytest.mark.parametrize(
    ("model", "taken"),
    [("A100", True), ("A10G", False), ("L4", False), ("H100", True), ("B200", True)],
)
def test_flash_differentiates_large_heads(model, taken):
    with simgpu.as_cuda(1, model=model):
        assert says(FLASH, *tensors(HALF, 1, 1, 3, 192, training=True))
        assert says(FLASH, *tensors(HALF, 1, 1, 3, 200))
        with torch.no_grad():
            assert says(FLASH, *tensors(HALF, 1, 1, 3, 200, training=True))
        assert says(FLASH, *tensors(HALF, 1, 1, 3, 224, training=True)) == taken
        assert says(FLASH, *tensors(HALF, 1, 1, 3, 200, training=True)) == taken
        assert says(FLASH, *tensors(HALF, 1, 1, 3, 256, training=True))
        assert says(FLASH, *tensors(HALF, 1, 1, 3, 256, training=True), dropout=0.5) == taken


@given(
    kernel=st.sampled_from([FLASH, EFFICIENT, CUDNN]),
    dtype=st.sampled_from([HALF, BFLOAT16, FLOAT, DOUBLE]),
    size=st.sampled_from([1, 4, 8, 16, 130, 264]),
    lengths=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    extra=st.sampled_from(["nothing", "mask", "causal", "dropout"]),
    model=st.sampled_from(["V100", "T4", "A100", "L4", "H100"]),
)
def test_forced_kernel_is_reported_to_queries(kernel, dtype, size, lengths, extra, model):
    with simgpu.as_cuda(1, model=model):
        query, key, value = tensors(dtype, 1, 2, 3, size)
        query, key, value = (
            query[:, :, : lengths[0]],
            key[:, :, : lengths[1]],
            value[:, :, : lengths[1]],
        )
        mask = torch.zeros(lengths, dtype=dtype, device="cuda") if extra == "mask" else None
        call = (query, key, value, mask, 0.5 if extra == "dropout" else 0.0, extra == "causal")
        assert says(kernel, *call) == does(kernel, *call)
        free = scaled_dot_product_attention(*call)  # whatever else there is computes it
        assert free.shape == query.shape


def test_refusal_has_a_reason_when_asked():
    with simgpu.as_cuda(1, model="A100"):
        with pytest.warns(UserWarning, match=r"dtype: {Half, BFloat16}. Got Query dtype: float"):
            assert not says(FLASH, *tensors(FLOAT, 1, 2, 8, 16), debug=True)
        with pytest.warns(UserWarning, match="need to be on cuda device. Got query on device: cpu"):
            assert not says(FLASH, *[torch.ones(1, 2, 8, 16).half()] * 3, debug=True)
        with pytest.warns(UserWarning, match="Query dim: 3, Key dim: 3, Value dim: 3"):
            assert not says(FLASH, *tensors(HALF, 2, 8, 16), debug=True)
