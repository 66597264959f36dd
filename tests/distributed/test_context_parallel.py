"""Attention within `context_parallel`, where each rank has a part of the sequence.

PyTorch passes keys and values around the ranks, by handlers for the operators that CUDA has.
"""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import simgpu

LENGTH = 2  # dimension 2 of queries, keys and values is the sequence


def attended(query, key, value):
    """The output of causal attention, and the gradients of a sum over it."""
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True)
    out.float().square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(
    ranks=st.integers(1, 4),
    heads=st.integers(1, 3),
    share=st.integers(1, 3),
    size=st.sampled_from([4, 8]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    forced=st.sampled_from([None, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]),
    seed=st.integers(0, 99),
)
def test_attention_over_parts_of_a_sequence_is_that_over_the_whole(
    ranks, heads, share, size, dtype, forced, seed
):
    if forced is SDPBackend.CUDNN_ATTENTION:
        size, dtype = 8, torch.bfloat16
    elif forced is not None and dtype is torch.bfloat16:
        size = 8
    if dtype is torch.float32 or forced is SDPBackend.EFFICIENT_ATTENTION:
        share = 32  # PyTorch adds up what this kernel keeps, which is padded to 32 rows

    def rank(_):
        mesh = init_device_mesh("cuda", (ranks,))
        torch.manual_seed(seed)
        shape = (1, heads, 2 * ranks * share, size)  # each rank has a part of each half
        whole = [torch.randn(shape, device="cuda").to(dtype) for _ in range(3)]
        parts = [tensor.clone() for tensor in whole]
        allowed = contextlib.nullcontext() if forced is None else sdpa_kernel(forced)
        with allowed, context_parallel(mesh, buffers=parts, buffer_seq_dims=[LENGTH] * 3):
            assert [part.shape[LENGTH] for part in parts] == [2 * share] * 3
            found = attended(*parts)
            assert found[0].shape == parts[0].shape
            joined = context_parallel_unshard(mesh, found, [LENGTH] * 4)
        for one, other in zip(joined, attended(*whole), strict=True):
            # As many roundings as there are summands, each of the size of the largest number.
            roundings = shape[LENGTH] + size
            bound = roundings * torch.finfo(dtype).eps * float(other.abs().max())
            assert float((one - other).abs().max()) <= bound

    simgpu.ranks(ranks, rank)
