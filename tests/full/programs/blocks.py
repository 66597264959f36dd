"""Data parallelism for one block of a model, by hand, and for a model that is partly on the CPU."""

import torch
from torch import nn

gpu = torch.device("cuda:0")


class Sandwich(nn.Module):
    """Three layers; only the one in the middle runs on all GPUs."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.middle = nn.DataParallel(nn.Linear(20, 20))
        self.last = nn.Linear(20, 20)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


class SeeThrough(nn.DataParallel):
    """Attributes that the wrapper lacks are the wrapped module's."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


def by_hand(module, batch, gpus, output_device=None):
    if not gpus:
        return module(batch)
    replicas = nn.parallel.replicate(module, gpus)
    chunks = nn.parallel.scatter(batch, gpus)
    outputs = nn.parallel.parallel_apply(replicas[: len(chunks)], chunks)
    return nn.parallel.gather(outputs, gpus[0] if output_device is None else output_device)


class HalfAndHalf(nn.Module):
    """The table of words stays on the CPU, the layer that reads them is on a GPU."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 10)
        self.reader = nn.Linear(10, 10).to(gpu)

    def forward(self, x):
        return self.reader(self.words(x).to(gpu))


torch.manual_seed(0)
sandwich = Sandwich().cuda()
rows = torch.randn(12, 10).cuda()
whole = sandwich(rows)
expected = sandwich.last(sandwich.middle.module(sandwich.first(rows)))

wrapped = SeeThrough(nn.Linear(10, 20)).cuda()
features = wrapped.in_features, wrapped.out_features

gpus = list(range(torch.cuda.device_count()))
layer = nn.Linear(10, 3).cuda()
gathered = by_hand(layer, rows, gpus)
at_the_end = by_hand(layer, rows, gpus, gpus[-1])
single = layer(rows)

half = HalfAndHalf()
read = half(torch.arange(6))
read.sum().backward()
