"""Calls that take PyTorch's own CPU kernels down: on a simulated device each is an error."""

import pytest
import torch
from torch import nn

from tests.support.calls import per_device

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")

STATS = {"training": True, "momentum": 0.5, "eps": 1e-5}


@per_device
def batch_norm(device, sizes, x=(2, 3)):
    stats = [torch.ones(size, device=device) for size in sizes]
    x_ = torch.ones(x, device=device)
    return torch._native_batch_norm_legit(x_, None, None, *stats, **STATS)


def batch_norm_backward(device):
    x, one = torch.ones(2, 0, device=device), torch.ones(0, device=device)
    mask = [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(
        x, x, None, one, one, one, one, True, 0.1, mask
    )


@per_device
def segments(device, **options):
    options_ = {name: torch.tensor(value, device=device) for name, value in options.items()}
    return torch.segment_reduce(torch.ones(4, device=device), "sum", **options_, unsafe=True)


@per_device
def solve(device, function, *pivots):
    pivots_ = torch.tensor(pivots, dtype=torch.int32, device=device)
    matrix = torch.eye(3, device=device) + 0.5
    return function(matrix, pivots_, torch.ones(3, 1, device=device))


@per_device
def unpack(device, *pivots):
    pivots_ = torch.tensor(pivots, dtype=torch.int32, device=device)
    return torch.lu_unpack(torch.eye(3, device=device), pivots_)


@per_device
def solve_with_numbers(device, dtype):
    """With pivots that no factorization has."""
    matrix, pivots = (torch.eye(3, device=device), torch.zeros(3, dtype=dtype, device=device))
    return torch.linalg.lu_solve(matrix, pivots, matrix)


def sparse_broadcast(device):
    return torch._sparse_broadcast_to(torch.eye(1, device=device).to_sparse(), [0, 1])


@per_device
def attention(device, query, key, value, grad=None):
    tensors = [torch.ones(shape, device=device) for shape in (query, key, value)]
    if grad is None:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*tensors)
    out, logsumexp = torch.ones(query, device=device), torch.ones(query[:3], device=device)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        torch.ones(grad, device=device), *tensors, out, logsumexp, 0.0, False
    )


@per_device
def fused(device, name, *shapes, **options):
    """A fused optimizer's step, with a parameter, its gradient and its state of these shapes."""
    numbers = ("lr", "beta1", "beta2", "weight_decay", "eps", "momentum", "dampening", "lr_decay")
    switches = ("amsgrad", "maximize", "nesterov", "is_first_step")
    schema = getattr(torch.ops.aten, name).default._schema
    asked = {argument.name for argument in schema.arguments}
    lists = [[torch.ones(shape, device=device)] for shape in shapes]
    if "max_exp_avg_sqs" in asked or "momentum_buffer_list" in asked:
        lists.append([])
    if "state_steps" in asked:
        lists.append([torch.ones((), device=device)])
    settings = {option: 0.5 for option in numbers if option in asked}
    settings |= {option: False for option in switches if option in asked}
    if "momentum" in asked:
        settings["momentum"] = 0.0
    given = {option: torch.ones(shape, device=device) for option, shape in options.items()}
    getattr(torch.ops.aten, name)(*lists, **settings, **given)
    return tuple(tensors[0] for tensors in lists if tensors)


@per_device
def int8_product(device, columns, offset=0, dtype=torch.bfloat16):
    x = torch.ones(4 * columns + offset, dtype=dtype, device=device)[offset:]
    weights = torch.ones(3, columns, dtype=torch.int8, device=device)
    scales = torch.ones(3, dtype=dtype, device=device)
    return torch._weight_int8pack_mm(x.view(4, columns), weights, scales)


def fused_overlapping(device):
    """Memory of one element, told to be a matrix."""
    parts = [torch.ones(8, 8, device=device) for _ in range(4)]
    parts[1] = torch.ones(1, 1, device=device).expand(8, 8)
    lists = [[part] for part in parts]
    return torch._fused_adam_(
        *lists,
        [],
        [torch.ones((), device=device)],
        lr=0.1,
        beta1=0.9,
        beta2=0.9,
        weight_decay=0.0,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


@per_device
def compressed(device, layout, ends, plain, use, count=None, shape=(2, 2)):
    """`use` of a sparse compressed tensor that nobody checked."""
    values = torch.ones(len(plain) if count is None else count, device=device)
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        values = values.reshape(-1, 1, 1)
    x = torch.sparse_compressed_tensor(
        torch.tensor(ends, device=device),
        torch.tensor(plain, device=device),
        values,
        shape,
        layout=layout,
        check_invariants=False,
    )
    return use(x)


@per_device
def listed(device, indices, use):
    """`use` of a sparse COO tensor that nobody checked."""
    places = torch.tensor(indices, device=device)
    values = torch.ones(len(indices[0]), device=device)
    return use(torch.sparse_coo_tensor(places, values, (2, 2), check_invariants=False))


def times(x):
    return (x @ torch.eye(2, device=x.device)).to_dense()


def added(x):
    return torch.ones(2, 2, device=x.device).add_(x)


@per_device
def converted(device, ends, plain):
    given = (torch.tensor(numbers, device=device) for numbers in (ends, plain))
    return torch._convert_indices_from_csr_to_coo(*given)


CSR, CSC, BSR = torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr
FAR = 1 << 40

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
    "attention to no heads": (attention((2, 4, 5, 8), *[(2, 0, 5, 8)] * 2), "heads to divide"),
    "attention of a flat query": (attention((4, 5, 8), *[(2, 4, 5, 8)] * 2), "4 dims"),
    "attention to flat keys": (attention((2, 4, 5, 8), (4, 5, 8), (2, 4, 5, 8)), "4 dims"),
    "attention without heads": (attention(*[(2, 0, 5, 8)] * 3), "nothing empty"),
    "gradient of too little attention": (
        attention(*[(2, 4, 5, 8)] * 3, (2, 4, 1, 8)),
        r"grad_out \(2, 4, 1, 8\)",
    ),
    "batch norm without variances": (batch_norm((3, 0)), "running_var should contain 3 elements"),
    "batch norm with too few means": (batch_norm((2, 3)), "running_mean should contain 3 elements"),
    "batch norm of a vector": (batch_norm((3, 3), (3,)), "two dimensions"),
    "gradient without channels": (batch_norm_backward, "expects elements"),
    "pivots with a fraction": (solve_with_numbers(torch.float32), "torch.int32"),
    "complex pivots": (solve_with_numbers(torch.complex64), "torch.int32"),
    "rows of half a vector": (int8_product(8), "multiple of 16"),
    "rows between two addresses": (int8_product(16, offset=1), "at storage offset 1 and"),
    "offsets past the end": (segments(offsets=[0, 1 << 20]), "offsets of shape"),
    "negative offsets": (segments(offsets=[-(1 << 20), 4]), "offsets of shape"),
    "falling offsets": (segments(offsets=[4, 0]), "offsets of shape"),
    "lengths past the end": (segments(lengths=[1 << 20]), "lengths of shape"),
    "lengths of which the sum overflows": (segments(lengths=[1 << 62] * 4), "lengths of shape"),
    "negative lengths": (segments(lengths=[-5, 9]), "lengths of shape"),
    "LU pivots past the end": (solve(torch.linalg.lu_solve, 1, 2, 1 << 20), "pivots must be"),
    "LU pivots of zero": (solve(torch.linalg.lu_solve, 0, 2, 3), "pivots must be"),
    "unpacked pivots past the end": (unpack(1, 2, 1 << 20), "pivots must be"),
    "too few pivots": (unpack(1), "pivots must be"),
    "LDL pivots past the end": (solve(torch.linalg.ldl_solve, 1, 2, 1 << 20), "pivots must be"),
    "columns past the end": (compressed(CSR, [0, 1, 2], [0, FAR], times), "col_indices from 0 to"),
    "negative columns": (compressed(CSR, [0, 1, 2], [0, -FAR], times), "col_indices from -"),
    "row ends past the end": (compressed(CSR, [0, FAR, 2], [0, 1], times), "do not rise"),
    "falling row ends": (compressed(CSR, [0, 2, 2, 1, 2], [0, 1], times, shape=(4, 2)), "not rise"),
    "too few row ends": (
        compressed(CSR, [0, 1], [0], times, shape=(1 << 20, 2)),
        r"crow_indices of shape \(2,\) for 1048576 lines",
    ),
    "too few values": (compressed(CSR, [0, 1, 2], [0, 1], times, 1), "2 col_indices for 1 values"),
    "rows past the end": (
        compressed(CSC, [0, 1, 2], [0, FAR], torch.Tensor.to_sparse_csr),
        "row_indices from 0 to",
    ),
    "a sparse sum past the end": (
        compressed(CSR, [0, 1, 2], [0, FAR], lambda x: x + x),
        "col_indices from 0 to",
    ),
    "indices past the end": (listed([[0, FAR], [0, 1]], added), "in dimension 0 of size 2"),
    "an index one past the end": (
        listed([[0, 2], [0, 1]], torch.Tensor.to_dense),
        "from 0 to 2 in dimension 0 of size 2",
    ),
    "negative indices": (listed([[0, 1], [0, -FAR]], added), "in dimension 1 of size 2"),
    "a product past the end": (listed([[0, FAR], [0, 1]], lambda x: x @ x), "in dimension 0"),
    "converted row ends past the end": (converted([0, FAR, 2], [0, 1]), "crow_indices that rise"),
    "converted rows past the end": (
        lambda device: torch._convert_indices_from_coo_to_csr(
            torch.tensor([0, FAR], device=device), 2
        ),
        "expected indices from 0 to 1",
    ),
    "Adam with too little gradient": (fused("_fused_adam_", 1 << 16, 2, 2, 2), "must have same"),
    "Adam with too little state": (fused("_fused_adam_", 9, 9, 9, 2), r"exp_avg_sqs\[0\]"),
    "Adam out of place": (fused("_fused_adam", 1 << 16, 2, 2, 2), "must have same"),
    "Adam on one element": (fused_overlapping, r"strides \(0, 0\)"),
    "Adam without a scale": (fused("_fused_adam_", 9, 9, 9, 9, grad_scale=0), "one number"),
    "AdamW with too little gradient": (fused("_fused_adamw_", 1 << 16, 2, 2, 2), "must have same"),
    "Adagrad with too little state": (fused("_fused_adagrad_", 1 << 16, 1 << 16, 2), "state_sums"),
    "SGD with too little gradient": (fused("_fused_sgd_", 1 << 16, 2), r"grads\[0\]"),
    "half an LDL block": (solve(torch.linalg.ldl_solve, 1, 2, -3), "pivots must be"),
}


@pytest.mark.without("--async", reason="wrong values are reported at once")
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
        int8_product(32, offset=16),
        int8_product(5, offset=1, dtype=torch.float32),
        fused("_fused_adam_", *[(3, 4)] * 4, grad_scale=(), found_inf=(1,)),
        fused("_fused_adamw_", *[(3, 4)] * 4),
        fused("_fused_adagrad_", *[()] * 3),
        fused("_fused_sgd_", *[(0, 4)] * 2),
        compressed(CSR, [0, 0, 2], [1, 0], times),
        compressed(CSC, [0, 1, 2], [0, 1], torch.Tensor.to_dense),
        compressed(BSR, [0, 1, 1], [1], torch.Tensor.to_dense),
        compressed(CSR, [0, 0, 0], [], torch.Tensor.to_dense, 0),
        listed([[0, 0, 1], [1, 1, 0]], added),
        converted([0, 0, 2], [0, 1]),
    ],
)
def test_valid_calls_are_accepted(simulated, call):
    results = [call(device) for device in (simulated[1], torch.device("cpu"))]
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        torch.testing.assert_close(one.cpu(), other)


QUANTIZE = {
    "per tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "per channel": lambda x: torch.quantize_per_channel(
        x, torch.ones(2, device=x.device), torch.zeros(2, device=x.device), 0, torch.quint8
    ),
    "dynamic": lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, False),
    "integers": lambda x: torch._make_per_tensor_quantized_tensor(x.to(torch.int8), 0.1, 0),
    "to": lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8).to(x.device),
    "to a dtype": lambda x: x.to(torch.qint8),
    "empty, with a scale": lambda x: torch._empty_affine_quantized(
        [2], scale=1.0, zero_point=0, dtype=torch.quint8, device=x.device
    ),
    "empty": lambda x: torch.empty(3, dtype=torch.qint8, device=x.device),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, ")
@pytest.mark.parametrize("name", sorted(QUANTIZE))
def test_quantized_tensors_are_refused(simulated, name):
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::\w+.*fake_quantize"):
        QUANTIZE[name](torch.ones(2, 3, device=simulated[1]))


def test_memory_of_a_device_is_not_for_mkldnn(simulated):
    x = torch.ones(2, device=simulated[1])
    with pytest.raises(NotImplementedError, match=r"'aten::to_mkldnn' with arguments .*simgpu"):
        x.to_mkldnn()
    with pytest.raises(NotImplementedError, match="device type for mkldnn layout: simgpu"):
        torch.ones(2).to_mkldnn().to(x.device)


@pytest.fixture
def two_processes():
    """This process as the first of two whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("simgpu:fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


def test_sync_batch_norm_wants_its_rows_on_a_device(simulated, two_processes):
    net = nn.SyncBatchNorm(3).to(simulated[1])
    with pytest.raises(ValueError, match="expected input tensor to be on GPU or XPU or simgpu"):
        net(torch.ones(2, 3, 4))
    rows = torch.randn(2, 3, 4)
    single = nn.BatchNorm1d(3)(rows)  # the other process has the same rows: so has their mean
    torch.testing.assert_close(net(rows.to(simulated[1])).cpu(), single)
