"""`simgpu.enable` and `simgpu.disable`, and blocks of devices that are not used as blocks."""

import gc
import re
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu.errors import DeviceBlockError, DevicesActiveError, InvalidDeviceError, NoDevicesError

WAYS = {
    "simgpu.devices(2)": lambda: simgpu.devices(2),
    "simgpu.as_cuda(3, memory='2GiB')": lambda: simgpu.as_cuda(3, memory="2GiB"),
}
ENABLE = {
    "simgpu.devices(2)": "simgpu.enable(2)",
    "simgpu.as_cuda(3, memory='2GiB')": "simgpu.enable(3, memory='2GiB', as_cuda=True)",
}

BLOCKS = {"simgpu.devices": simgpu.devices, "simgpu.as_cuda": simgpu.as_cuda}


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    assert torch.simgpu.device_count() == 0
    assert not torch.cuda.is_available()


@pytest.mark.parametrize("name", ["simgpu", "cuda"])
def test_devices_last_until_they_are_disabled(name):
    devices = simgpu.enable(3, memory=["1GiB", 512, "1KiB"], as_cuda=name == "cuda")
    assert devices == [torch.device(name, index) for index in range(3)]
    x = torch.ones(100, device=devices[2])
    assert (x.device, torch.cuda.is_available()) == (devices[2], name == "cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(1000, device=devices[1])
    simgpu.disable()
    assert (x.device.type, x.tolist()[0]) == ("simgpu", 1.0)
    with pytest.raises(NoDevicesError, match=r"simgpu\.enable\(n\)") as raised:
        torch.ones(1, device="simgpu:0")
    assert raised.value.__context__ is None


@pytest.mark.parametrize(
    ("count", "there"),
    [
        (1, "there is one simulated device, simgpu:0"),
        (2, "there are 2 simulated devices, simgpu:0 to simgpu:1"),
    ],
)
def test_only_the_missing_device_is_reported(count, there):
    says = f"simgpu:9 was asked for, but {there}"
    with simgpu.devices(count):
        for call in (torch.ones, torch.empty, torch.randn):
            with pytest.raises(InvalidDeviceError, match=f"{says}$") as raised:
                call(3, device="simgpu:9")
            assert raised.value.__context__ is None


def test_misplaced_enable_and_disable_name_the_way_out():
    with pytest.raises(DeviceBlockError, match=r"nothing to end.* simgpu\.enable\(n\)"):
        simgpu.disable()
    simgpu.enable(2, as_cuda=True)
    for again in (lambda: simgpu.enable(4), lambda: simgpu.enable(2, as_cuda=True)):
        with pytest.raises(DevicesActiveError, match=r"enable\(2, as_cuda=True\) .*simgpu.disable"):
            again()
    with pytest.raises(DevicesActiveError, match=r"call simgpu\.disable\(\)"), simgpu.devices(2):
        pass
    simgpu.disable()
    with simgpu.devices(2):
        with pytest.raises(DevicesActiveError, match="leave the `with"):
            simgpu.enable(2)
        with pytest.raises(DeviceBlockError, match="end with their block"):
            simgpu.disable()
        torch.ones(2, device="simgpu:1")


@given(there=st.integers(1, 4), more=st.integers(1, 4))
def test_devices_that_are_there_are_counted(there, more):
    words = f"^{there} simulated device{' is' if there == 1 else 's are'} active already, so {more}"
    with simgpu.devices(there), pytest.raises(DevicesActiveError, match=words):
        simgpu.enable(more)


def test_wrong_arguments_enable_nothing():
    for wrong in ({"count": 0}, {"count": 2, "memory": "1 GB"}, {"count": 2, "force": True}):
        with pytest.raises(ValueError, match=r"."):
            simgpu.enable(**wrong)
    with pytest.raises(TypeError):
        simgpu.enable("2")
    assert torch.simgpu.device_count() == 0


@pytest.mark.parametrize("call", sorted(WAYS))
def test_a_block_is_entered_once(call):
    block = WAYS[call]()
    text = re.escape(f"{call} was entered before") + ".*" + re.escape(f"call {call} again")
    with block:
        with pytest.raises(DeviceBlockError, match=text):
            block.__enter__()
        torch.ones(2, device="simgpu:1")  # the block goes on
    with pytest.raises(DeviceBlockError, match=text), block:
        pass
    with pytest.raises(DeviceBlockError, match="is not entered"):
        block.__exit__(None, None, None)


COUNTS = st.integers() | st.text() | st.none() | st.booleans()


@given(count=COUNTS, name=st.sampled_from(sorted(BLOCKS)))
def test_a_block_that_was_not_entered_is_written_as_the_program_did(count, name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        BLOCKS[name](count)
    assert f"{name}({count!r}) made no devices" in str(caught[0].message)


@pytest.mark.parametrize("call", sorted(WAYS))
def test_dropped_block_warns(call):
    block = WAYS[call]()
    text = re.escape(f"write `with {call}:`, or {ENABLE[call]}")
    assert re.search(f"{re.escape(call)}, not entered: {text}", repr(block))
    with pytest.warns(RuntimeWarning, match=f"never entered: {text}"):
        del block
    block = WAYS[call]()
    block.__enter__()
    assert repr(block) == f"<{call}, entered>"
    with pytest.warns(RuntimeWarning, match=f"dropped, which ended its devices: {text}"):
        del block


def test_a_block_decorates_a_function():
    @simgpu.devices(2)
    def count():
        return torch.simgpu.device_count()

    assert [count(), count()] == [2, 2]
    del count
    gc.collect()  # without a warning


@pytest.mark.full
@pytest.mark.parametrize("first", ["import torch\nimport simgpu", "import simgpu"])
@pytest.mark.parametrize("name", ["simgpu", "cuda"])
def test_a_session_that_never_disables_ends_in_silence(python, first, name):
    script = f"""
{first}
simgpu.enable(2, as_cuda={name == "cuda"})
import torch
x = torch.ones(2, device="{name}:1", requires_grad=True)
(x * 2).sum().backward()
print(x.grad)
"""
    done = python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"tensor([2., 2.], device='{name}:1')\n"
