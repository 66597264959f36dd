"""What may name a device, which type integers count, and where a module has to be."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from dataparallel import comm
from tests.support import strategies
from tests.support.observe import ExactNet, plain, values


def net_on(device):
    return ExactNet(3, "float32").to(device)


def rows(device, count=4):
    return values((count, 3), "float32").to(device)


# Each call, with something in the place of a device.
NAMING = {
    "DataParallel": lambda at, it: dataparallel.DataParallel(net_on(at[0]), [at[0], it]),
    "its output": lambda at, it: dataparallel.DataParallel(net_on(at[0]), at, it),
    "data_parallel": lambda at, it: dataparallel.data_parallel(net_on(at[0]), rows("cpu"), [0, it]),
    "scatter": lambda at, it: dataparallel.scatter(rows(at[0]), [0, it]),
    "gather": lambda at, it: dataparallel.gather([rows(at[0])] * 2, it),
    "replicate": lambda at, it: dataparallel.replicate(net_on(at[0]), [at[0], it]),
    "parallel_apply": lambda at, it: dataparallel.parallel_apply(
        [nn.Identity()] * 2, [(rows(at[0]),)] * 2, None, [0, it]
    ),
    "comm.broadcast": lambda at, it: comm.broadcast(rows(at[0]), [0, it]),
    "comm.scatter": lambda at, it: comm.scatter(rows(at[0]), [0, it]),
    "comm.gather": lambda at, it: comm.gather([rows(at[0])] * 2, 0, it),
    "comm.reduce_add": lambda at, it: comm.reduce_add([rows(at[0])] * 2, it),
}


@pytest.mark.parametrize("wrong", [True, False, 1.0, -1.0, b"cpu"])
@pytest.mark.parametrize("name", NAMING)
@pytest.mark.devices(2)
def test_invalid_device_is_refused(devices, name, wrong):
    """True is 1 for Python, and a slip in the order of arguments for a reader."""
    text = f"expected a device as torch.device, str or int, but got {wrong!r}"
    with pytest.raises(TypeError, match=text):
        NAMING[name](devices, wrong)


@pytest.mark.parametrize("name", sorted(NAMING.keys() - {"its output", "gather", "comm.gather"}))
@pytest.mark.devices(2)
def test_negative_numbers_name_no_device(devices, name):
    """But for -1 where outputs go, an old name of the CPU."""
    with pytest.raises(ValueError, match="expected a non-negative device index, but got -1"):
        NAMING[name](devices, -1)


@pytest.mark.parametrize("name", ["its output", "gather", "comm.gather"])
@pytest.mark.devices(2)
def test_minus_one_is_an_old_name_of_the_cpu(devices, name):
    with pytest.warns(FutureWarning, match='"cpu"') as caught:
        out = NAMING[name](devices, -1)
    assert len(caught) == 1
    if name == "its output":
        assert plain(out(rows(devices[0]))) == plain(out.module.cpu()(rows("cpu")))
        assert out.output_device == torch.device("cpu")
    else:
        assert out.device == torch.device("cpu")
    with pytest.raises(ValueError, match="-2"):
        NAMING[name](devices, -2)


SINGLE = {
    "scatter": lambda it: dataparallel.scatter(rows("cpu"), it),
    "replicate": lambda it: dataparallel.replicate(net_on("cpu"), it),
    "comm.broadcast": lambda it: comm.broadcast(rows("cpu"), it),
    "DataParallel": lambda it: dataparallel.DataParallel(net_on("cpu"), it),
    "data_parallel": lambda it: dataparallel.data_parallel(net_on("cpu"), rows("cpu"), it),
    "comm.scatter": lambda it: comm.scatter(rows("cpu"), it),
}


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.devices(2)
def test_a_single_device_is_no_list(devices, name):
    """A text is a sequence for Python: of one device for each letter."""
    for it in ("cpu", str(devices[0]), devices[0], 0):
        with pytest.raises(TypeError, match="expected a sequence of devices, but got a single one"):
            SINGLE[name](it)


class OnMeta(nn.Module):
    """A module whose parameters have shapes and no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, device="meta"))

    def forward(self, x):
        return x + 1


@given(data=st.data())
def test_numbers_beside_meta_tensors_are_the_accelerators(devices, data):
    """There are no devices "meta:0" and "meta:1": nobody can mean them."""
    targets = data.draw(strategies.device_lists(devices, min_size=1))
    numbers = [target.index for target in targets]
    model = dataparallel.DataParallel(OnMeta() if len(targets) > 1 else nn.Identity(), numbers)
    assert [torch.device(model.device_type, index) for index in model.device_ids] == targets
    chunks = [(rows(target),) for target in targets]
    for given_by in (numbers, targets):
        outs = dataparallel.parallel_apply([OnMeta() for _ in targets], chunks, None, given_by)
        assert [out.device for out in outs] == targets
    beside = [torch.ones(2, device="meta"), rows(targets[0])]
    for out, target in zip(dataparallel.scatter(rows("cpu"), numbers), targets, strict=False):
        assert out.device == target
    with pytest.raises(RuntimeError, match=f"devices.0., which is {targets[0]}.* on meta"):
        dataparallel.replicate(OnMeta(), numbers)
    with pytest.raises(RuntimeError, match=f"is {targets[0]}, but tensor 0 is on meta"):
        comm.broadcast_coalesced(beside, numbers)


class Half(nn.Module):
    """Its buffer does not follow it."""

    def __init__(self, device, inner) -> None:
        super().__init__()
        holder = nn.Module() if inner else self
        if inner:
            self.inner = holder
        self.weight = nn.Parameter(torch.ones(3, device=device))
        self.nobody = None
        self.register_module("none", None)
        holder.register_buffer("missing", None)
        holder.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        return x * self.weight


@pytest.mark.parametrize("count", [1, 3])
@given(inner=st.booleans(), function=st.booleans())
def test_buffer_on_another_device_is_refused(devices, count, inner, function):
    """On one device as on several, where a buffer would be copied from wherever it is."""
    targets = devices[:count]
    net = Half(targets[0], inner)
    model = dataparallel.DataParallel(net, targets)
    model.module = net = Half(targets[0], inner)  # with one device, the first one was moved there
    call = partial(dataparallel.data_parallel, net, device_ids=targets) if function else model
    with pytest.raises(RuntimeError, match=rf"on device {targets[0]} .* on device: cpu"):
        call(rows(targets[0]))


@pytest.mark.parametrize("kind", ["device", "text", "number"])
@given(data=st.data())
def test_one_device_takes_the_module_to_itself(devices, kind, data):
    target = data.draw(st.sampled_from(devices))
    named = {"device": target, "text": str(target), "number": target.index}[kind]
    net = ExactNet(3, "float32")
    model = dataparallel.DataParallel(net, [named])
    assert {tensor.device for tensor in net.parameters()} == {target}
    assert model(rows("cpu")).device == target
    assert (model.device_ids, model.output_device) == ([target.index], target.index)
    assert model.src_device_obj == target


@pytest.mark.devices(2)
def test_devices_of_two_types_are_refused(devices):
    with pytest.raises(ValueError, match="device_ids must be of one type"):
        dataparallel.DataParallel(net_on(devices[0]), [devices[0], "cpu"])
