"""A replica says that it is one, as `torch.nn.Module` asks of it."""

import warnings

import pytest
import torch
from torch import nn

import dataparallel


class Forgetful(nn.Linear):
    def forward(self, x):
        self.zero_grad()
        return super().forward(x)


class Custom(Forgetful):
    def _replicate_for_data_parallel(self):
        return super()._replicate_for_data_parallel()


@pytest.mark.parametrize("kind", [Forgetful, Custom])
def test_zero_grad_in_a_replica_warns_that_it_has_no_effect(devices, kind):
    module = kind(3, 3).to(devices[0])
    parallel = dataparallel.DataParallel(module, devices[:2])
    x = torch.ones(4, 3, device=devices[0])
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            parallel(x).sum().backward()
        assert sum("zero_grad() from a module" in str(each.message) for each in caught) == 2
    assert module.bias.grad.tolist() == [8.0] * 3
