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


def test_integers_are_refused():
    x = values((4, 3), "float32", 1)
    for call in (
        lambda: dataparallel.scatter(x, [0, 1]),
        lambda: dataparallel.gather([x, x], 0),
        lambda: dataparallel.replicate(nn.Linear(3, 3), [0]),
    ):
        with no_accelerator(), pytest.raises(RuntimeError, match="there is no accelerator"):
            call()


def test_a_module_without_devices_is_called_itself():
    module = nn.Linear(3, 2)
    x = torch.ones(5, 3)
    with no_accelerator():
        parallel = dataparallel.DataParallel(module)
        assert plain(parallel(x)) == plain(module(x))
        (output,) = dataparallel.parallel_apply([module], [x])
    assert output.device == torch.device("cpu")
