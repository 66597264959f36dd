"""Attention of sequences of different lengths: `varlen_attn`, and the operators that it calls.

Each sequence is compared with attention of its own, in float64 (tests/support/attention.py).
"""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from tests.support import attention

varlen = pytest.importorskip("torch.nn.attention.varlen")
aten = torch.ops.aten
HEADS, SIZE = 4, 8

lengths = st.lists(st.integers(1, 20), min_size=1, max_size=4)
seeds = st.integers(0, 1000)


def starts(sizes):
    """Where each sequence begins, and where the last ends."""
    return torch.tensor([0, *sizes]).cumsum(0).int()


def packed(sizes, heads, seed, dtype=torch.float16):
    """Queries, keys or values of sequences one after another: (length, heads, size)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(sum(sizes), heads, SIZE, generator=random).to(dtype).requires_grad_()


def hidden_by(window, most):
    """What says which keys are hidden from a query, where the last query is at the last key.

    A window that is as large as all keys, `most` of them, is none; beside another it ends there.
    """
    left, right = (size if 0 <= size < most else None for size in window)
    if left is not None and right is None:
        right = most

    def hidden(rows, columns):
        offset = torch.arange(columns) - (torch.arange(rows)[:, None] + columns - rows)
        before = torch.zeros_like(offset, dtype=torch.bool) if left is None else offset < -left
        return before if right is None else before | (offset > right)

    return hidden


def check_each(tensors, of_queries, of_keys, got, grad, hidden, scale=None):
    """Compare each sequence's part of the output and of the gradients."""
    query, key, value = tensors
    parts = zip(pairwise(of_queries.tolist()), pairwise(of_keys.tolist()), strict=True)
    for rows, columns in parts:
        where = [slice(*rows), slice(*columns), slice(*columns)]
        case = attention.Case(
            *(
                tensor.detach()[place].transpose(0, 1)[None].requires_grad_()
                for tensor, place in zip((query, key, value), where, strict=True)
            ),
            scale=scale,
            hidden=hidden(rows[1] - rows[0], columns[1] - columns[0]),
        )
        places = [where[0], *where]
        found = [
            each.cpu()[place].transpose(0, 1)[None]
            for each, place in zip(got, places, strict=False)
        ]
        attention.check(case, found, grad[where[0]].transpose(0, 1)[None])


@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=4),
    groups=st.sampled_from([1, 2, 4]),
    window=st.tuples(st.integers(-1, 6), st.integers(-1, 6)),
    scale=st.sampled_from([None, 0.5]),
    seed=seeds,
)
def test_varlen_attn(sizes, groups, window, scale, seed):
    """With windows and shared heads, and its gradients."""
    of_queries, of_keys = (starts(each) for each in zip(*sizes, strict=True))
    tensors = [
        packed([each[which] for each in sizes], heads, seed + number)
        for number, (which, heads) in enumerate([(0, HEADS), (1, groups), (1, groups)])
    ]
    most = [max(each) for each in zip(*sizes, strict=True)]
    with simgpu.as_cuda(1, model="A100"):
        there = [tensor.detach().cuda().requires_grad_() for tensor in tensors]
        out, sums = varlen.varlen_attn(
            *there, of_queries.cuda(), of_keys.cuda(), *most, scale=scale, window_size=window,
            enable_gqa=True, return_aux=varlen.AuxRequest(lse=True),
        )  # fmt: skip
        grad = torch.linspace(-1, 1, out.numel()).view(out.shape).half()
        grads = torch.autograd.grad(out, there, grad.cuda())
        into = torch.empty_like(there[0].detach())
        with torch.no_grad():
            varlen.varlen_attn_out(
                into, *there, of_queries.cuda(), of_keys.cuda(), *most, scale=scale,
                window_size=window, enable_gqa=True,
            )  # fmt: skip
        assert torch.equal(into, out)
        assert sums.shape == (HEADS, sum(each[0] for each in sizes))
        hidden = hidden_by(window, most[1])
        check_each(tensors, of_queries, of_keys, [out, *grads], grad, hidden, scale)


@given(used=lengths, page=st.sampled_from([4, 8]), seed=seeds)
def test_pages_of_keys(used, page, seed):
    """Keys and values in pages of a pool, in any order."""
    count = len(used)
    each = -(-max(used) // page)
    random = torch.Generator().manual_seed(seed)
    table = torch.randperm(count * each, generator=random).view(count, each).int()
    pool = packed([count * each * page], HEADS, seed).detach().view(-1, page, HEADS, SIZE)
    query = packed([1] * count, HEADS, seed + 1).detach()
    with simgpu.as_cuda(1, model="A100"):
        out = varlen.varlen_attn(
            query.cuda(), pool.cuda(), pool.flip(0).cuda(), starts([1] * count).cuda(), None,
            1, max(used), seqused_k=torch.tensor(used).int().cuda(), block_table=table.cuda(),
        ).cpu()  # fmt: skip
    for number, length in enumerate(used):
        key, value = (
            part[table[number].long()].flatten(0, 1)[:length] for part in (pool, pool.flip(0))
        )
        case = attention.Case(
            *(part.transpose(0, 1)[None] for part in (query[number : number + 1], key, value))
        )
        there = out[number : number + 1].transpose(0, 1)[None]
        attention.check(case, [there], there)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=4),
    mask_type=st.integers(0, 2),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    window=st.sampled_from([None, 3]),
    seed=seeds,
)
def test_efficient_attention_of_sequences(sizes, mask_type, dtype, window, seed):
    """In a batch of one; a mask ends at the first keys (1) or the last ones (2)."""
    of_queries, of_keys = (starts(each) for each in zip(*sizes, strict=True))
    tensors = [
        packed([each[which] for each in sizes], HEADS, seed + number, dtype)
        for number, which in enumerate([0, 1, 1])
    ]
    most = [max(each) for each in zip(*sizes, strict=True)]
    window = window if mask_type else None

    def hidden(rows, columns):
        if not mask_type:
            return torch.zeros(rows, columns, dtype=torch.bool)
        offset = torch.arange(columns) - torch.arange(rows)[:, None]
        offset -= columns - rows if mask_type == 2 else 0
        return (offset > 0) | (offset <= -window if window else offset > 0)

    with simgpu.as_cuda(1, model="A100"):
        there = [tensor.detach().cuda()[None].requires_grad_() for tensor in tensors]
        out, sums, *_, rows, columns = aten._efficient_attention_forward(
            *there, None, of_queries.cuda(), of_keys.cuda(), *most, 0.0, mask_type, True,
            window_size=window,
        )  # fmt: skip
        grad = torch.linspace(-1, 1, out.numel()).view(out.shape).to(dtype)
        grads = torch.autograd.grad(out, there, grad.cuda())
    assert [rows, columns] == most
    assert sums.shape == (len(sizes), HEADS, math.ceil(most[0] / 32) * 32)
    found = [each[0] for each in (out, *grads)]
    if window:
        found = found[:1]  # autograd does not hand it to the backward pass
    check_each(tensors, of_queries, of_keys, found, grad[0], hidden)


@given(sizes=st.lists(st.integers(1, 12), min_size=2, max_size=4), p=st.sampled_from([0.0, 0.5]))
def test_dropout_of_sequences_is_the_same_in_both_passes(sizes, p):
    """A weight that was dropped has no share in the gradient of its value."""
    places = starts(sizes)
    with simgpu.as_cuda(1, model="A100"):
        torch.manual_seed(1)
        query, key = (packed(sizes, HEADS, n).detach().cuda() for n in range(2))
        value = torch.zeros(sum(sizes), HEADS, 16, dtype=torch.float16, device="cuda")
        for begin, end in pairwise(places.tolist()):
            value[begin:end] = torch.eye(end - begin, 16).half()[:, None].cuda()
        for forward, options in (
            (aten._flash_attention_forward, (p, False, False)),
            (aten._efficient_attention_forward, (p, 0, True)),
        ):
            if forward is aten._flash_attention_forward:
                wide = [torch.nn.functional.pad(each, (0, 8)) for each in (query, key)]
                given = [*wide, value.clone().requires_grad_()]
            else:
                given = [each[None] for each in (query, key, value)]
                given[2] = given[2].clone().requires_grad_()
            bias = [] if forward is aten._flash_attention_forward else [None]
            most = max(sizes)
            out, *_ = forward(*given, *bias, places.cuda(), places.cuda(), most, most, *options)
            (grad,) = torch.autograd.grad(out.sum(), given[2])
            kept, grad = (each.reshape(sum(sizes), HEADS, 16) for each in (out != 0, grad))
            assert bool((kept.sum() < sum(n * n for n in sizes) * HEADS).item()) == (p > 0)
            for begin, end in pairwise(places.tolist()):
                used = kept[begin:end, :, : end - begin].any(0)  # by some query, (heads, keys)
                assert torch.equal(grad[begin:end, :, 0].T != 0, used)
