"""What may name a device, which type integers count, and where a module has to be.

On a machine without an accelerator all is done on the CPU, and integers name no device. A device of
any accelerator can be asked for its streams, copied to, and made current.
"""

import contextlib
import os
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from dataparallel import _devices, comm
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
        for how in ((x, device_ids), (None, device_ids, None, 0, {"input": x})):
            assert plain(dataparallel.data_parallel(module, *how)) == plain(module(x))
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


@given(
    accelerator=st.sampled_from([None, "cuda", "other"]),
    available=st.booleans(),
    streams=st.booleans(),
    count=st.integers(0, 2),
    cuda=st.booleans(),
)
def test_an_accelerator_is_usable_with_streams_and_a_device(
    accelerator, available, streams, count, cuda
):
    def module(available, streams, count):
        there = {"is_available": lambda: available, "device_count": lambda: count}
        return SimpleNamespace(**there, **({"current_stream": None} if streams else {}))

    modules = {"cuda": module(cuda, True, 1)}
    modules[accelerator or "cuda"] = module(available, streams, count)
    usable = {"cuda": cuda, accelerator or "cuda": available and streams and count > 0}
    expected = [name for name in (accelerator or "cuda", "cuda") if usable[name]]
    kind = SimpleNamespace(type=accelerator) if accelerator else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda: kind)
        patch.setattr(_devices, "device_module", modules.__getitem__)
        assert _devices.available_type() == (expected[0] if expected else None)


@given(data=st.data())
def test_a_device_without_index_is_the_current_one(devices, data):
    target = data.draw(st.sampled_from(devices))
    x = values((4, 3), "float32")
    for name in (target.type, torch.device(target.type)):
        with torch.get_device_module(target).device(target):
            assert dataparallel.gather([x.to(target)] * 2, name).device == target
            assert [chunk.device for chunk in dataparallel.scatter(x, [name])] == [target]
            assert comm.broadcast(x.to(target), [name])[0].device == target


@given(data=st.data())
def test_a_device_is_current_within_its_context(devices, data):
    target, other = (data.draw(st.sampled_from(devices)) for _ in range(2))
    module = torch.get_device_module(target)
    with module.device(other):
        with _devices.on_device(torch.device("cpu")):
            assert module.current_device() == other.index
        with _devices.on_device(target):
            assert module.current_device() == target.index
        assert module.current_device() == other.index


@given(data=st.data())
def test_copies_have_a_stream_of_their_own(devices, data):
    """One for each device and all threads, not the one that is current."""
    target, other = (data.draw(st.sampled_from(devices)) for _ in range(2))
    _devices._forget_streams()  # as at the first copy of all
    stream = _devices.copy_stream(target)
    assert stream.device == target
    assert stream == _devices.copy_stream(target)
    assert stream != _devices.current_stream(target)
    assert (stream == _devices.copy_stream(other)) == (target == other)
    assert _devices.copy_stream(torch.device("cpu")) is None
    assert _devices.current_stream(torch.device("cpu")) is None
    with _devices.on_stream(None), _devices.on_stream(stream):
        assert _devices.current_stream(target) == stream
    assert _devices.current_stream(target) != stream


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_waits_for_no_thread_of_its_parent(python):
    """Were the lock its parent's, it would hang where CUDA says that it may use no device."""
    done = python(
        "-c",
        "import os, signal, torch, simgpu\n"
        "from dataparallel import _devices\n"
        "with simgpu.devices(2):\n"
        "    first, second = (torch.device('simgpu', index) for index in range(2))\n"
        "    torch.ones(1, device=first)  # initializes; a stream does not\n"
        "    _devices.copy_stream(first)\n"
        "    with _devices._copy_streams_lock:\n"
        "        child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.alarm(60)\n"
        "        for device in (first, second):\n"
        "            try: _devices.copy_stream(device)\n"
        "            except RuntimeError as error: assert 'forked' in str(error)\n"
        "            else: os._exit(1)\n"
        "        os._exit(7)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n",
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
