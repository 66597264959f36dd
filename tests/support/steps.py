"""Training steps of small models, for tests that let each step fail somewhere."""

import torch
from torch import nn

import dataparallel


class _LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(self.layer(x)[0])


class _Tied(nn.Module):
    """The same weight in the first layer and in the last."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(4, 6), nn.Linear(6, 4)
        self.out.weight = nn.Parameter(self.into.weight.t().clone())
        self.again = nn.Linear(4, 6)
        self.again.weight = self.into.weight

    def forward(self, x):
        return self.out(torch.tanh(self.into(x))) + self.out(torch.tanh(self.again(x)))


class _Nested(nn.Module):
    """A layer that is divided within a model that is divided too."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), inner

    def forward(self, x):
        return self.inner(torch.relu(self.first(x)))


def _mlp(_):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (9, 4)


def _conv(_):
    layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)
    return nn.Sequential(*layers), (17, 2, 5, 5)


def _transformer(_):
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.4, batch_first=True), (8, 3, 4)


def _nested(wrap):
    return _Nested(wrap(nn.Linear(4, 3))), (8, 4)


MODELS = {
    "MLP": _mlp,
    "convolution and BatchNorm": _conv,
    "LSTM": lambda _: (_LSTM(), (8, 3, 4)),
    "Transformer with dropout": _transformer,
    "tied weights": lambda _: (_Tied(), (8, 4)),
    "nested DataParallel": _nested,
}

WRAPPERS = {
    "ours": dataparallel.DataParallel,
    "cached": lambda net, ids: dataparallel.DataParallel(net, ids, cache_parameters=True),
    "balanced": lambda net, ids: dataparallel.DataParallel(net, ids, chunking="balanced"),
    "PyTorch's": nn.DataParallel,
}


class Step:
    """Forward, backward and SGD of one model under one DataParallel; it is called to be run."""

    def __init__(self, model, wrapper, devices):
        torch.manual_seed(0)
        ids = [device.index for device in devices]
        self.device = devices[0]

        def wrap(module, ids=ids):
            return WRAPPERS[wrapper](module.to(self.device), ids)

        net, shape = MODELS[model](wrap)
        self.x = torch.randn(shape)
        # Replicas of an inner DataParallel would not be on the first of its devices.
        self.net = wrap(net, ids[:1] if model == "nested DataParallel" else ids)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def __call__(self):
        self.optimizer.zero_grad()
        loss = self.net(self.x.to(self.device)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss
