"""Models of whole numbers whose gradients DistributedDataParallel has exactly: the whole batch's.

Weights and inputs are small whole numbers and the loss is multiplied by the number of ranks, so
that sums and means over ranks are exact: gradients are compared bit for bit.
"""

import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class WholeNumbers(nn.Module):
    """Two layers of whole numbers."""

    def __init__(self, seed):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            values = torch.randint(-2, 3, parameter.shape, generator=generator)
            parameter.data = values.to(parameter.dtype)

    def forward(self, x):
        return self.last(self.first(x).relu())


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (count, 3), generator=generator).float()


def gradients(model):
    return [None if p.grad is None else p.grad.cpu().clone() for p in model.parameters()]


def of_whole_batch(model, x):
    """Gradients of the sum over the whole batch, on the CPU."""
    single = copy.deepcopy(model)
    single(x).sum().backward()
    return gradients(single)


def equal(found, wanted):
    return all(
        b is None or (a is not None and torch.equal(a, b))
        for a, b in zip(found, wanted, strict=True)
    )


def equal_mean(found, wanted, count):
    """Exact but for seven ranks: up to eight, that is the count whose inverse does not undo it."""
    if count != 7:
        return equal(found, wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-4)
    return True


def parallel(model, rank, **options):
    return DistributedDataParallel(copy.deepcopy(model).cuda(), device_ids=[rank], **options)


def backward(model, x, size):
    (model(x.cuda()).sum() * size).backward()
