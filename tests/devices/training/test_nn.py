"""torch.nn as people use it: a module on a device does what it does on the CPU.

Outputs, gradients, buffers and what a second step sees of the first are compared in float64 with
PyTorch's own tolerance for it, so that the same file holds on real GPUs. A module is one line:
how it is made and what it is called with (`batch`, `time` and a source of numbers).
"""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, rnn
from torch.utils._pytree import tree_leaves, tree_map

from tests.support import strategies
from tests.support.worlds import few

F = nn.functional
SIZE = 4


def normal(*shape):
    return lambda batch, time: (
        torch.randn([{"b": batch, "t": time}.get(n, n) for n in shape], dtype=torch.float64),
    )


def twice(make):
    return lambda batch, time: (*make(batch, time), *make(batch, time))


def attended(*shape):
    return lambda batch, time: tuple(normal(*shape)(batch, time)[0] for _ in range(3))


def indices(*shape):
    return lambda batch, time: (
        torch.randint(0, 10, [{"b": batch, "t": time}.get(n, n) for n in shape]),
    )


SEQUENCE = normal("t", "b", SIZE)
IMAGE = normal("b", 3, 6, 6)
ROWS = normal("b", SIZE)


class Packed(nn.Module):
    """A recurrent network over sequences of different lengths."""

    def __init__(self, kind, sort):
        super().__init__()
        self.net = getattr(nn, kind)(SIZE, 5, 2)
        self.sort = sort

    def forward(self, x):
        lengths = [max(1, x.shape[0] - k) for k in range(x.shape[1])]
        lengths = lengths if self.sort else lengths[::-1]
        packed = rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=self.sort)
        out, state = self.net(packed)
        return rnn.pad_packed_sequence(out)[0], state


class PaddedEncoder(nn.Module):
    """A Transformer over padded sequences, in eval mode: nested tensors and the fast path."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.net = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        padding[0, 1:] = True
        with torch.no_grad():
            return self.net.eval()(x, src_key_padding_mask=padding)


def transformer_layer(**options):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options)


MODULES = {
    "linear": (lambda: nn.Linear(SIZE, 3), ROWS),
    "bilinear": (lambda: nn.Bilinear(SIZE, SIZE, 3), twice(ROWS)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), normal("b", 3, "t")),
    "conv2d": (lambda: nn.Conv2d(3, 6, 3, stride=2, groups=3, bias=False), IMAGE),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2, dilation=2), normal("b", 1, 4, 4, 4)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, output_padding=1), IMAGE),
    "batch_norm": (lambda: nn.BatchNorm2d(3), IMAGE),
    "batch_norm_eval": (lambda: nn.BatchNorm2d(3).eval(), IMAGE),
    "instance_norm": (lambda: nn.InstanceNorm2d(3, affine=True), IMAGE),
    "group_norm": (lambda: nn.GroupNorm(3, 3), IMAGE),
    "layer_norm": (lambda: nn.LayerNorm(SIZE), SEQUENCE),
    "rms_norm": (lambda: nn.RMSNorm(SIZE), SEQUENCE),
    "pools": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)), IMAGE),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE),
    "fold": (lambda: nn.Sequential(nn.Unfold(2), nn.Fold((6, 6), 2)), IMAGE),
    "activations": (lambda: nn.Sequential(nn.PReLU(), nn.GELU(), nn.SiLU(), nn.Softmax(-1)), ROWS),
    "rnn": (lambda: nn.RNN(SIZE, 5, 2), SEQUENCE),
    "lstm": (lambda: nn.LSTM(SIZE, 5, 2), SEQUENCE),
    "lstm_bidirectional": (lambda: nn.LSTM(SIZE, 5, bidirectional=True, bias=False), SEQUENCE),
    "lstm_projected": (lambda: nn.LSTM(SIZE, 5, 2, proj_size=3), SEQUENCE),
    "gru": (lambda: nn.GRU(SIZE, 5, 2, batch_first=True), normal("b", "t", SIZE)),
    "gru_bidirectional": (lambda: nn.GRU(SIZE, 5, bidirectional=True, bias=False), SEQUENCE),
    "rnn_cell": (lambda: nn.RNNCell(SIZE, 5), ROWS),
    "lstm_cell": (lambda: nn.LSTMCell(SIZE, 5), ROWS),
    "gru_cell": (lambda: nn.GRUCell(SIZE, 5), ROWS),
    "packed_lstm": (lambda: Packed("LSTM", True), SEQUENCE),
    "packed_gru_unsorted": (lambda: Packed("GRU", False), SEQUENCE),
    "multihead": (lambda: nn.MultiheadAttention(8, 2), attended("t", "b", 8)),
    "multihead_eval": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval(),
        attended("b", "t", 8),
    ),
    "encoder_layer": (lambda: transformer_layer(), normal("t", "b", 8)),
    "encoder_layer_first": (lambda: transformer_layer(norm_first=True), normal("t", "b", 8)),
    "encoder_layer_eval": (
        lambda: transformer_layer(batch_first=True).eval(),
        normal("b", "t", 8),
    ),
    "encoder_padded": (PaddedEncoder, normal("b", "t", 8)),
    "decoder_layer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0),
        twice(normal("t", "b", 8)),
    ),
    "transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
        twice(normal("t", "b", 8)),
    ),
    "embedding": (lambda: nn.Embedding(10, SIZE, padding_idx=0), indices("b", "t")),
    "embedding_norm": (lambda: nn.Embedding(10, SIZE, max_norm=1.0), indices("b", "t")),
    "embedding_sparse": (lambda: nn.Embedding(10, SIZE, sparse=True), indices("b", "t")),
    "embedding_bag": (lambda: nn.EmbeddingBag(10, SIZE), indices("b", "t")),
    "embedding_bag_max": (lambda: nn.EmbeddingBag(10, SIZE, mode="max"), indices("b", "t")),
    "embedding_bag_sparse": (
        lambda: nn.EmbeddingBag(10, SIZE, mode="sum", sparse=True),
        indices("b", "t"),
    ),
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(SIZE, 3)), ROWS),
    "spectral_norm": (lambda: parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), IMAGE),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(SIZE, SIZE)), ROWS),
}


def tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def dense(x):
    return x.to_dense() if x is not None and x.layout is not torch.strided else x


def step(net, arguments):
    """One forward and backward pass; returns all that it gives and leaves behind, by name."""
    net.zero_grad()
    outputs = tensors(net(*arguments))
    grown = [x for x in outputs if x.requires_grad]
    if grown:
        # Not the mere sum, so that each element has another gradient.
        sum(
            (x * torch.arange(1, x.numel() + 1, device=x.device).view(x.shape)).sum() for x in grown
        ).backward()
    seen = {f"output {k}": x for k, x in enumerate(outputs)}
    seen |= {f"gradient {name}": p.grad for name, p in net.named_parameters()}
    seen |= {f"input gradient {k}": x.grad for k, x in enumerate(arguments)}
    return seen | {f"buffer {name}": x.clone() for name, x in net.named_buffers()}


def compare(here, there, device):
    assert here.keys() == there.keys()
    for name, expected in here.items():
        got = there[name]
        assert (expected is None) == (got is None), name
        if expected is None:
            continue
        assert got.device == device, name
        assert got.layout == expected.layout, name
        torch.testing.assert_close(
            dense(got).cpu(),
            dense(expected),
            **({"rtol": 1e-5, "atol": 1e-5} if device.type == "cuda" else {}),
            msg=lambda words, name=name: f"{name}: {words}",
        )


# Padded encoders make nested tensors, of which PyTorch says on the CPU too that they may change.
@pytest.mark.filterwarnings("ignore:nested_from_padded CUDA kernels only support:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("name", sorted(MODULES))
@strategies.fewer_examples
@given(data=st.data(), seed=st.integers(0, 1000))
def test_module_matches_cpu(devices, name, data, seed):
    device = data.draw(st.sampled_from(devices))
    batch, time = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 4))
    make, inputs = MODULES[name]
    torch.manual_seed(seed)
    here = make().double()
    there = copy.deepcopy(here).to(device)
    for _ in range(2):
        x = inputs(batch, time)
        y = tree_map(lambda t: t.to(device), x)
        for t in (*x, *y):
            t.requires_grad_(t.is_floating_point())
        compare(step(here, x), step(there, y), device)


@given(data=st.data(), training=st.booleans())
def test_sync_batch_norm_of_one_process_is_a_batch_norm(devices, data, training):
    device = data.draw(st.sampled_from(devices))
    x = torch.randn(4, 3, 2, device=device)
    nets = [kind(3).to(device).train(training) for kind in (nn.SyncBatchNorm, nn.BatchNorm1d)]
    torch.testing.assert_close(*(net(x) for net in nets))
    torch.testing.assert_close(*(net.running_mean for net in nets))


@few
@given(
    data=st.data(), affine=st.booleans(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3)
)
def test_sums_of_ranks_give_the_batch_norm_of_all_rows(devices, data, affine, sizes):
    """The operators under SyncBatchNorm, with the sums over ranks taken here."""
    device, eps, momentum = data.draw(st.sampled_from(devices)), 1e-3, 0.3
    torch.manual_seed(len(sizes))
    x, grad = (torch.randn(sum(sizes), 3, 2, dtype=torch.float64, device=device) for _ in range(2))
    weight = x.new_tensor([0.5, 1.0, 2.0]) if affine else None
    bias = x.new_tensor([-1.0, 0.0, 3.0]) if affine else None
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias) if t is not None]
    parameters = leaves[1:] or (None, None)
    means, variances = (
        [start.clone() for _ in range(2)] for start in (x[0, :, 0], x[0, :, 1] ** 2)
    )
    y = F.batch_norm(leaves[0], means[0], variances[0], *parameters, True, momentum, eps)
    expected = [y, *torch.autograd.grad(y, leaves, grad), means[0], variances[0]]

    rows, grads = x.split(sizes), grad.split(sizes)
    counts = x.new_tensor([2 * size for size in sizes])
    each = zip(*(torch.batch_norm_stats(part, eps) for part in rows), strict=True)
    statistics = map(torch.stack, each)
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        x, *statistics, means[1], variances[1], momentum, eps, counts
    )
    known = (mean, invstd)
    sums = [
        torch.batch_norm_backward_reduce(*pair, *known, weight, True, affine, affine)
        for pair in zip(grads, rows, strict=True)
    ]
    columns = [parts for parts in zip(*sums, strict=True) if parts[0] is not None]
    dy, dy_xmu, *wanted = (torch.stack(parts).sum(0) for parts in columns)
    parts = [torch.batch_norm_elemt(part, weight, bias, *known, eps) for part in rows]
    slopes = [
        torch.batch_norm_backward_elemt(*pair, *known, weight, dy, dy_xmu, counts.int())
        for pair in zip(grads, rows, strict=True)
    ]
    found = [torch.cat(parts), torch.cat(slopes), *wanted[: 2 * affine], means[1], variances[1]]
    torch.testing.assert_close(found, expected)


@given(data=st.data(), limit=st.sampled_from([0.1, 1.0, 100.0]), kind=st.sampled_from([2.0, 1.0]))
def test_gradients_are_clipped_as_on_the_cpu(devices, data, limit, kind):
    """Foreach and one by one, also with parameters on several devices."""
    foreach = data.draw(st.sampled_from([None, True, False]))
    places = data.draw(st.lists(st.sampled_from(devices), min_size=2, max_size=2))
    torch.manual_seed(0)
    here = [torch.randn(3, SIZE, dtype=torch.float64, requires_grad=True) for _ in places]
    there = [p.detach().to(d).requires_grad_() for p, d in zip(here, places, strict=True)]
    norms = []
    for parameters in (here, there):
        for p in parameters:
            p.grad = p.detach() * 3
        norms.append(nn.utils.clip_grad_norm_(parameters, limit, kind, foreach=foreach))
        nn.utils.clip_grad_value_(parameters, 0.5, foreach=foreach)
    assert norms[1].device == places[0]
    torch.testing.assert_close(norms[1].cpu(), norms[0])
    for p, q in zip(here, there, strict=True):
        assert q.grad.device == q.device
        torch.testing.assert_close(q.grad.cpu(), p.grad)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_a_padded_nested_tensor_has_a_gradient(devices):
    rows = [torch.ones(2, 3), torch.ones(1, 3)]
    x = torch.nested.nested_tensor(rows, device=devices[-1], requires_grad=True)
    torch.nested.to_padded_tensor(torch.relu(x), 0.0).sum().backward()
    assert [part.tolist() for part in x.grad.unbind()] == [part.tolist() for part in rows]
    assert x.grad.device == devices[-1]


pairs = st.lists(st.integers(1, 2), min_size=2, max_size=2)
# Groups, padding, stride, dilation and a seed of a convolution that has a result.
convolutions = st.tuples(st.integers(1, 2), pairs, pairs, pairs, st.integers(0, 99))


def values_and_gradients(function, *tensors):
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    y = function(*leaves)
    return [y, *torch.autograd.grad((y * y).sum(), leaves)]


@few
@given(data=st.data(), case=convolutions, transposed=st.booleans())
def test_cudnns_convolutions_are_convolutions(devices, data, case, transposed):
    device = data.draw(st.sampled_from(devices))
    groups, padding, stride, dilation, seed = case
    torch.manual_seed(seed)
    x = torch.randn(2, 2, 6, 7, dtype=torch.float64, device=device)
    weight = torch.randn(2, 2 // groups, 2, 2, dtype=torch.float64, device=device)
    rest = (stride, dilation, groups, False, True, False)

    def ours(*xw):
        if transposed:
            return torch.cudnn_convolution_transpose(*xw, padding, [0, 0], *rest)
        return torch.cudnn_convolution(*xw, padding, *rest)

    def portable(*xw):
        convolve = F.conv_transpose2d if transposed else F.conv2d
        return convolve(*xw, stride=stride, padding=padding, dilation=dilation, groups=groups)

    found, expected = (values_and_gradients(each, x, weight) for each in (ours, portable))
    torch.testing.assert_close(found, expected)


@few
@given(data=st.data(), case=convolutions, alpha=st.sampled_from([None, 0.5, -2.0]))
def test_a_fused_convolution_is_its_steps(devices, data, case, alpha):
    device = data.draw(st.sampled_from(devices))
    # On a GPU cuDNN fuses no float64, and may compute in TF32.
    on_gpu = device.type == "cuda"
    dtype, bound = (torch.float32, {"rtol": 1e-2, "atol": 1e-2}) if on_gpu else (torch.float64, {})
    groups, padding, stride, dilation, seed = case
    torch.manual_seed(seed)
    x, weight, bias = (
        torch.randn(*shape, dtype=dtype, device=device)
        for shape in ((2, 2, 6, 7), (4, 2 // groups, 2, 2), (4,))
    )
    sizes = stride, padding, dilation, groups
    y = F.conv2d(x, weight, bias, *sizes)
    z = torch.randn_like(y)
    found = torch.cudnn_convolution_relu(x, weight, bias, *sizes)
    torch.testing.assert_close(found, y.relu(), **bound)
    found = torch.cudnn_convolution_add_relu(x, weight, z, alpha, bias, *sizes)
    expected = (y + (1 if alpha is None else alpha) * z).relu()
    torch.testing.assert_close(found, expected, **bound)


def test_autocast_lowers_cudnns_convolutions(devices):
    x, weight = (torch.ones(1, 1, 3, 3, device=devices[-1]) for _ in range(2))
    with torch.autocast(x.device.type):
        y = torch.cudnn_convolution(x, weight, [0, 0], [1, 1], [1, 1], 1, False, True, False)
    assert (y.dtype, y.item()) == (torch.float16, 9)
