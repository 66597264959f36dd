"""On a machine without an accelerator all is done on the CPU, and integers name no device."""

import contextlib

import pytest
import torch
from torch import nn

import dataparallel
from tests.support.observe import plain, values


@contextlib.contextmanager
def no_accelerator():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_devices_by_name_are_devices(device):
    x = values((4, 3), "float32", 1)
    with no_accelerator():
        chunks = dataparallel.scatter(x, [device, device])
        assert [len(chunk) for chunk in chunks] == [2, 2]
        assert plain(dataparallel.gather(chunks, device)) == plain(x)
        outputs = dataparallel.parallel_apply([nn.Identity()] * 2, chunks, devices=[device] * 2)
        assert plain(torch.cat(outputs)) == plain(x)
        net = nn.Linear(3, 2)
        parallel = dataparallel.DataParallel(net, [device, device])
        assert (parallel.device_type, len(parallel.device_ids)) == ("cpu", 2)
        assert plain(parallel(x)) == plain(net(x))


def test_integers_are_refused():
    x = values((4, 3), "float32", 1)
    for call in (
        lambda: dataparallel.scatter(x, [0, 1]),
        lambda: dataparallel.gather([x, x], 0),
        lambda: dataparallel.replicate(nn.Linear(3, 3), [0]),
    ):
        with no_accelerator(), pytest.raises(RuntimeError, match="there is no accelerator"):
            call()


@pytest.mark.parametrize("device_ids", [None, [], range(0)])
def test_module_without_devices_is_called_itself(device_ids):
    """The code that trains on many GPUs runs on a machine that has none."""
    module = nn.Linear(3, 2)
    x = torch.ones(5, 3)
    with no_accelerator():
        assert plain(dataparallel.DataParallel(module, device_ids)(x)) == plain(module(x))
        assert plain(dataparallel.data_parallel(module, x, device_ids)) == plain(module(x))
        (output,) = dataparallel.parallel_apply([module], [x])
    assert output.device == torch.device("cpu")


def test_integers_beside_tensors_of_a_device_count_its_devices(devices):
    """Whether or not that accelerator is the one that is asked for by default."""
    x, net = (it.to(devices[0]) for it in (values((4, 3), "float32", 1), nn.Linear(3, 3)))
    second = devices[1].index
    with no_accelerator():
        assert [chunk.device for chunk in dataparallel.scatter((3, [x]), [0, second])[1][1]] == [
            devices[1]
        ]
        assert dataparallel.gather([{"x": x}, {"x": x}], second)["x"].device == devices[1]
        replicas = dataparallel.replicate(net, [devices[0].index, second])
        assert replicas[1].weight.device == devices[1]
        outs = dataparallel.parallel_apply(
            replicas, [x, x.to(devices[1])], None, [devices[0].index, second]
        )
        assert [out.device for out in outs] == devices[:2]
        parallel = dataparallel.DataParallel(net, [devices[0].index, second])
        assert parallel(x).device == devices[0]
        assert len(dataparallel.DataParallel(net).device_ids) == len(set(devices))
        (output,) = dataparallel.parallel_apply([Type()], [()])
        assert output == "cpu"
        (output,) = dataparallel.parallel_apply([net], [x])
        assert output.device == devices[0]


class Type(nn.Module):
    def forward(self):
        return torch.ones(1).device.type


def test_steps_without_devices_are_on_the_cpu():
    """A subclass may call them."""
    x = values((4, 3), "float32", 1)
    with no_accelerator():
        parallel = dataparallel.DataParallel(nn.Linear(3, 2))
        assert parallel.device_type is None
        chunks, _ = parallel.scatter((x,), {}, [0, "cpu"])
        assert [len(chunk) for (chunk,) in chunks] == [2, 2]
        outputs = parallel.gather([chunk for (chunk,) in chunks], 0)
    assert plain(outputs) == plain(x)
