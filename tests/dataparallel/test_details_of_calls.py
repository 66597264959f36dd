"""What a caller can see of a call besides its results: attributes, identities, words."""

import pytest
import torch
from torch import nn

import dataparallel
from tests.support.observe import plain, values


class Recurrent(nn.Module):
    """A module that is copied in its own way, before one that is not."""

    def __init__(self):
        super().__init__()
        self.first = nn.RNN(3, 2, batch_first=True)
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.first(x)[0])


def test_layers_after_a_recurrent_one_are_replicated_too(devices):
    module = Recurrent().to(devices[0])
    for replica, device in zip(
        dataparallel.replicate(module, devices[:3]), devices[:3], strict=True
    ):
        found = {name: tensor.device for name, tensor in replica.named_parameters()}
        assert found == {name: device for name, _ in module.named_parameters()}


def test_the_output_device_is_an_index_next_to_the_module(devices):
    module = nn.Linear(3, 3).to(devices[0])
    assert dataparallel.DataParallel(module, devices[:2]).output_device == devices[0].index
    chosen = dataparallel.DataParallel(module, devices[:2], output_device=devices[1])
    assert chosen.output_device == devices[1].index
    host = dataparallel.DataParallel(module, devices[:2], output_device="cpu")
    assert host.output_device == torch.device("cpu")


def test_the_step_scatter_cuts_as_the_call_does(devices):
    module = nn.Linear(3, 3).to(devices[0])
    parallel = dataparallel.DataParallel(module, devices[:4], chunking="balanced")
    x = values((5, 3), "float32", 1).to(devices[0])
    inputs, _ = parallel.scatter((x,), {}, parallel.device_ids)
    assert [len(chunk) for (chunk,) in inputs] == [2, 1, 1, 1]


def test_empty_containers_are_handed_on_as_they_are(devices):
    x = values((4, 3), "float32", 1).to(devices[0])
    for empty in ([], (), {}):
        chunks = dataparallel.scatter((x, empty), devices[:2])
        assert all(chunk[1] is empty for chunk in chunks)


class Failing(nn.Module):
    def forward(self, x):
        raise ValueError("planted")


def test_a_failure_on_the_cpu_names_the_cpu():
    x = torch.ones(2)
    with pytest.raises(ValueError, match="in replica 1 on device cpu"):
        dataparallel.parallel_apply(
            [nn.Identity(), Failing()], [(x,), (x,)], devices=["cpu", "cpu"]
        )


@pytest.mark.parametrize("number", [0, 1])
def test_integers_are_output_devices(devices, number):
    module = nn.Linear(3, 3).to(devices[0])
    x = values((4, 3), "float32", 1).to(devices[0])
    parallel = dataparallel.DataParallel(module, devices[:2], output_device=devices[number].index)
    output = parallel(x)
    assert output.device == devices[number]
    assert plain(output) == plain(module(x))
