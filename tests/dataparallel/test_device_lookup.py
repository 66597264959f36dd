"""What stands behind the name of a device: its module, streams, and the contexts of a thread."""

import os
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataparallel
from dataparallel import _devices, comm
from tests.support.observe import values


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
