"""Calls that take PyTorch's own CPU kernels down: on a simulated device each is an error."""

import pytest
import torch

STATS = {"training": True, "momentum": 0.5, "eps": 1e-5}


def batch_norm(sizes, x=(2, 3)):
    def call(device):
        stats = [torch.ones(size, device=device) for size in sizes]
        x_ = torch.ones(x, device=device)
        return torch._native_batch_norm_legit(x_, None, None, *stats, **STATS)

    return call


def batch_norm_backward(device):
    x, one = torch.ones(2, 0, device=device), torch.ones(0, device=device)
    mask = [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(
        x, x, None, one, one, one, one, True, 0.1, mask
    )


def segments(**options):
    def call(device):
        options_ = {name: torch.tensor(value, device=device) for name, value in options.items()}
        return torch.segment_reduce(torch.ones(4, device=device), "sum", **options_, unsafe=True)

    return call


def solve(function, *pivots):
    def call(device):
        pivots_ = torch.tensor(pivots, dtype=torch.int32, device=device)
        matrix = torch.eye(3, device=device) + 0.5
        return function(matrix, pivots_, torch.ones(3, 1, device=device))

    return call


def unpack(*pivots):
    def call(device):
        pivots_ = torch.tensor(pivots, dtype=torch.int32, device=device)
        return torch.lu_unpack(torch.eye(3, device=device), pivots_)

    return call


def sparse_broadcast(device):
    return torch._sparse_broadcast_to(torch.eye(1, device=device).to_sparse(), [0, 1])


def attention(query, key, value, grad=None):
    def call(device):
        tensors = [torch.ones(shape, device=device) for shape in (query, key, value)]
        if grad is None:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*tensors)
        out, logsumexp = torch.ones(query, device=device), torch.ones(query[:3], device=device)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            torch.ones(grad, device=device), *tensors, out, logsumexp, 0.0, False
        )

    return call


CALLS = {
    "a sparse tensor without elements": (sparse_broadcast, "has no elements"),
    "attention to nothing": (
        attention((2, 4, 5, 8), (2, 4, 0, 8), (2, 4, 0, 8)),
        "flash attention",
    ),
    "attention to values past the end": (
        attention((2, 4, 5, 8), (2, 4, 1 << 10, 8), (2, 4, 1, 8)),
        r"key \(2, 4, 1024, 8\)",
    ),
    "attention with too many heads": (attention(*[(2, h, 5, 8) for h in (4, 8, 8)]), "divide"),
    "attention without heads": (attention(*[(2, 0, 5, 8)] * 3), "nothing empty"),
    "gradient of too little attention": (
        attention(*[(2, 4, 5, 8)] * 3, (2, 4, 1, 8)),
        r"grad_out \(2, 4, 1, 8\)",
    ),
    "batch norm without variances": (batch_norm((3, 0)), "running_var should contain 3 elements"),
    "batch norm with too few means": (batch_norm((2, 3)), "running_mean should contain 3 elements"),
    "batch norm of a vector": (batch_norm((3, 3), (3,)), "two dimensions"),
    "gradient without channels": (batch_norm_backward, "expects channels"),
    "offsets past the end": (segments(offsets=[0, 1 << 20]), "offsets of shape"),
    "negative offsets": (segments(offsets=[-(1 << 20), 4]), "offsets of shape"),
    "falling offsets": (segments(offsets=[4, 0]), "offsets of shape"),
    "lengths past the end": (segments(lengths=[1 << 20]), "lengths of shape"),
    "negative lengths": (segments(lengths=[-5, 9]), "lengths of shape"),
    "LU pivots past the end": (solve(torch.linalg.lu_solve, 1, 2, 1 << 20), "pivots must be"),
    "LU pivots of zero": (solve(torch.linalg.lu_solve, 0, 2, 3), "pivots must be"),
    "unpacked pivots past the end": (unpack(1, 2, 1 << 20), "pivots must be"),
    "too few pivots": (unpack(1), "pivots must be"),
    "LDL pivots past the end": (solve(torch.linalg.ldl_solve, 1, 2, 1 << 20), "pivots must be"),
    "half an LDL block": (solve(torch.linalg.ldl_solve, 1, 2, -3), "pivots must be"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_would_read_past_memory_raises(simulated, name):
    call, words = CALLS[name]
    with pytest.raises(RuntimeError, match=words):
        call(simulated[1])


@pytest.mark.parametrize(
    "call",
    [
        batch_norm((3, 3)),
        segments(offsets=[0, 1, 1, 4]),
        segments(lengths=[1, 0, 2]),
        solve(torch.linalg.lu_solve, 3, 2, 3),
        solve(torch.linalg.ldl_solve, 1, -3, -3),
        unpack(1, 3, 3),
    ],
)
def test_right_calls_are_let_through(simulated, call):
    results = [call(device) for device in (simulated[1], torch.device("cpu"))]
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        torch.testing.assert_close(one.cpu(), other)
