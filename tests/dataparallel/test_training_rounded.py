"""Training that rounds: a gradient is the sum of what one device computes for each chunk.

Each replica computes what the module itself computes for the same chunk; the sum over replicas may
round, within the bound of `tests/support/rounding.py`. Where rows do not see each other, these
chunks are the batch. In BatchNorm they do: each replica normalises by its own chunk, so that the
training step is *not* that of one device on the whole batch, and the running statistics are those
of the first chunk. In evaluation it is.
"""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from tests.support import strategies
from tests.support.observe import plain
from tests.support.rounding import check_bound
from tests.support.training import few


class Recurrent(nn.Module):
    """An LSTM, which is copied in its own way, before a layer that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, num_layers=2, batch_first=True)
        self.last = nn.Linear(3, 3)

    def forward(self, x):
        out, _ = self.lstm(x.unsqueeze(-1).expand(-1, -1, 4))
        return self.last(out[:, -1])


def old_spectral_norm():
    return torch.nn.utils.spectral_norm(nn.Linear(4, 3))


NETS = {
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh()),
    "lstm": Recurrent,
    "spectral norm": lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
    "spectral norm by hooks": old_spectral_norm,
    "weight norm": lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
}


def loss_of(out):
    return (out * torch.linspace(-1, 1, out[0].numel(), device=out.device).view(out[0].shape)).sum()


def chunk_gradients(net, chunks):
    """The gradients, for each chunk, of copies of the module as it is now, and the last copies."""
    copies = [copy.deepcopy(net) for _ in chunks]
    for one, chunk in zip(copies, chunks, strict=True):
        one.zero_grad()
        loss_of(one(chunk)).backward()
    return [{name: p.grad for name, p in one.named_parameters()} for one in copies], copies


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@pytest.mark.devices(2, at_least=True)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", NETS)
@few
@given(data=st.data(), steps=st.integers(1, 3), seed=st.integers(0, 99))
def test_gradients_are_sums_over_chunks(devices, name, optimizer, data, steps, seed):
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    torch.manual_seed(seed)
    net = NETS[name]().to(targets[0])
    model = dataparallel.DataParallel(net, targets, chunking="balanced")
    optimize = getattr(torch.optim, optimizer)(net.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randn(3 * len(targets), 4).to(targets[0])
        chunks = dataparallel.scatter(x, [targets[0]] * len(targets), chunking="balanced")
        parts, copies = chunk_gradients(net, chunks)
        optimize.zero_grad()
        loss_of(model(x)).backward()
        for key, parameter in net.named_parameters():
            check_bound(parameter.grad, [part[key] for part in parts])
        # What a forward writes is that of the first replica.
        assert buffers(net) == buffers(copies[0])
        optimize.step()


def buffers(net):
    return {name: plain(buffer) for name, buffer in net.named_buffers()}


class Overflowing(nn.Linear):
    """Rows that begin with a large number overflow in half precision."""

    def forward(self, x):
        return super().forward(x) * x[:, :1].exp()


@few
@given(data=st.data(), broken=st.lists(st.booleans(), min_size=2, max_size=4))
def test_autocast_and_loss_scaling(devices, data, broken):
    """Step k is skipped, and the scale halved, if a replica's gradient is not finite."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    kind = targets[0].type
    torch.manual_seed(0)
    net = Overflowing(4, 3).to(targets[0])
    model = dataparallel.DataParallel(net, targets)
    optimize = torch.optim.SGD(net.parameters(), lr=2**-10)
    scaler = torch.amp.GradScaler(kind, init_scale=256.0)
    for overflows in broken:
        x = torch.randn(2 * len(targets), 4)
        if overflows:
            x[-1, 0] = 300.0  # in the last chunk only
        x = x.to(targets[0])
        before, scale = [plain(p) for p in net.parameters()], scaler.get_scale()
        parts = []
        for chunk in x.chunk(len(targets)):
            one = copy.deepcopy(net)
            one.zero_grad()
            with torch.autocast(kind, torch.float16):
                loss = loss_of(one(chunk))
            scaler.scale(loss).backward()
            parts.append([p.grad for p in one.parameters()])
        optimize.zero_grad()
        with torch.autocast(kind, torch.float16):
            out = model(x)
            loss = loss_of(out)
        scaler.scale(loss).backward()
        if not overflows:
            for parameter, *chunks in zip(net.parameters(), *parts, strict=True):
                check_bound(parameter.grad, chunks)
        scaler.step(optimize)
        scaler.update()
        assert ([plain(p) for p in net.parameters()] == before) == overflows
        assert scaler.get_scale() == (scale / 2 if overflows else scale)


@pytest.mark.devices(4)
@pytest.mark.parametrize("make", [nn.LazyBatchNorm1d, lambda: nn.Sequential(nn.LazyLinear(3))])
def test_lazy_module_raises_with_advice(devices, make):
    """Shapes have to be learned before there is something to copy; theirs is a ValueError too."""
    lazy = make().to(devices[0])
    model = dataparallel.DataParallel(lazy, devices)
    x = torch.randn(8, 4, device=devices[0])
    with pytest.raises(ValueError, match="Run one batch through the module itself first"):
        model(x)
    lazy(x)
    assert len(model(x)) == 8
