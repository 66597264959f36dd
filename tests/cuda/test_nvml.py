"""NVML and nvidia-smi: they answer by the allocators, the models and the clock of the devices.

NVML is asked by ctypes here, as pynvml asks it; tests/assurance/clients has pynvml's own clients.
"""

import csv
import ctypes
import os
import re
import sys
import types
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._config.gpus import models
from simgpu._cuda.nvml import library, process, smi
from simgpu._cuda.nvml.figures import CUDA_NUMBER, FIELDS

NAME = "libnvidia-ml.so.1"
MIB = 2**20


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    ]


class Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    """Calls functions of NVML as a client in C: they fill what they are passed."""

    def __init__(self):
        self.library = ctypes.CDLL(NAME)
        assert self.library.nvmlInit_v2() == 0

    def handle(self, index):
        found = ctypes.c_void_p()
        assert self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(found)) == 0
        return found

    def ask(self, name, handle, out):
        assert getattr(self.library, f"nvmlDeviceGet{name}")(handle, ctypes.byref(out)) == 0
        return out

    def text(self, name, handle):
        out = ctypes.create_string_buffer(96)
        assert getattr(self.library, f"nvmlDeviceGet{name}")(handle, out, ctypes.c_uint(96)) == 0
        return out.value.decode()

    def processes(self, handle):
        ask = self.library.nvmlDeviceGetComputeRunningProcesses_v3
        count = ctypes.c_uint(0)
        if ask(handle, ctypes.byref(count), None) == 0:
            return []
        found = (Process * count.value)()
        assert ask(handle, ctypes.byref(count), found) == 0
        return [(each.pid, each.usedGpuMemory) for each in found]


def query(words):
    """The rows of a table of nvidia-smi in csv, by a reader of csv."""
    text, status = smi.answer(words, process.gpus)
    assert status == 0, text
    return list(csv.reader(text.splitlines(), skipinitialspace=True))


sizes = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40 * MIB)), max_size=6)
visible = st.lists(st.integers(0, 2), min_size=1, unique=True)


@given(taken=sizes, order=visible)
def test_memory_is_what_the_allocator_keeps(taken, order):
    """Numbers of GPUs are those of the machine, whatever CUDA_VISIBLE_DEVICES calls them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, order)))
        with simgpu.as_cuda(3, memory=[2**30, 2**31, 2**32]):
            kept = [torch.empty(n, dtype=torch.uint8, device=at % len(order)) for at, n in taken]
            del kept[::2]
            nvml = Nvml()
            rows = query(["--query-gpu=memory.total,memory.used,memory.free", "--format=csv"])
            apps = query(["--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,nounits"])
            xml = ElementTree.fromstring(smi.answer(["-q", "-x"], process.gpus)[0])
            assert len(rows) == 4
            for number in range(3):
                handle = nvml.handle(number)
                memory = nvml.ask("MemoryInfo", handle, Memory())
                uuid = nvml.text("UUID", handle)
                used = free = memory.total
                if number in order:
                    index = order.index(number)
                    free, total = torch.cuda.mem_get_info(index)
                    assert memory.total == total
                    assert uuid == f"GPU-{torch.cuda.get_device_properties(index).uuid}"
                used -= free
                assert (memory.used, memory.free) == (used, free)
                assert [f"{n // MIB} MiB" for n in (memory.total, used, free)] == rows[number + 1]
                shown = xml.findall("gpu/fb_memory_usage")[number]
                assert [shown.findtext(n) for n in ("total", "used", "free")] == rows[number + 1]
                ours = [(os.getpid(), used)] if used else []
                assert nvml.processes(handle) == ours
                assert [row[1:] for row in apps if row[0] == uuid] == [
                    [str(pid), str(nbytes // MIB)] for pid, nbytes in ours
                ]


@given(names=st.lists(st.sampled_from(sorted(models())), min_size=1, max_size=3))
def test_identity_is_that_of_the_properties(names):
    with simgpu.as_cuda(len(names), model=names):
        nvml = Nvml()
        assert torch.cuda._raw_device_count_nvml() == len(names)
        properties = [torch.cuda.get_device_properties(i) for i in range(len(names))]
        assert torch.cuda._raw_device_uuid_nvml() == [f"GPU-{each.uuid}" for each in properties]
        listed, _ = smi.answer(["-L"], process.gpus)
        xml = ElementTree.fromstring(smi.answer(["-q", "-x"], process.gpus)[0])
        for number, wanted in enumerate(properties):
            handle = nvml.handle(number)
            assert nvml.text("Name", handle) == wanted.name
            assert f"GPU {number}: {wanted.name} (UUID: GPU-{wanted.uuid})\n" in listed
            major, minor = ctypes.c_int(), ctypes.c_int()
            ask = nvml.library.nvmlDeviceGetCudaComputeCapability
            assert ask(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
            assert (major.value, minor.value) == (wanted.major, wanted.minor)
            bus_id = f"00000000:{wanted.pci_bus_id:02X}:00.0"
            assert xml.findall("gpu")[number].get("id") == bus_id
            found = ctypes.c_void_p()
            ask = nvml.library.nvmlDeviceGetHandleByPciBusId_v2
            assert ask(bus_id[4:].lower().encode(), ctypes.byref(found)) == 0
            assert nvml.ask("Index", found, ctypes.c_uint()).value == number
            ask = nvml.library.nvmlDeviceGetHandleByUUID
            assert ask(f"GPU-{wanted.uuid}".encode(), ctypes.byref(found)) == 0
            assert nvml.ask("MinorNumber", found, ctypes.c_uint()).value == number
            assert ask(b"GPU-0", ctypes.byref(found)) == library.NOT_FOUND
            name, size = ctypes.create_string_buffer(96), len(wanted.name)  # without its last 0
            assert nvml.library.nvmlDeviceGetName(handle, name, size) == library.TOO_SMALL
            model, out = models()[names[number]], ctypes.c_uint()
            assert nvml.ask("EnforcedPowerLimit", handle, out).value == 1000 * model.power_limit
            assert nvml.ask("PowerUsage", handle, out).value == 1000 * (model.power_limit // 10)
        ask = nvml.library.nvmlDeviceGetHandleByIndex_v2
        assert ask(len(names), ctypes.byref(found)) == library.INVALID


@given(names=st.lists(st.sampled_from([*FIELDS, "count"]), min_size=1, max_size=5), data=st.data())
def test_query_has_a_column_for_each_field(names, data):
    chosen = data.draw(st.lists(st.integers(0, 2), unique=True))
    with simgpu.as_cuda(3, model="A100"):
        about = query(["--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"])
        ids = [data.draw(st.sampled_from(about[number])) for number in chosen]
        only = [f"--id={','.join(ids)}"] if chosen else []
        form = data.draw(st.sampled_from(["csv", "csv,noheader", "csv,noheader,nounits"]))
        rows = query([f"--query-gpu={','.join(names)}", f"--format={form}", *only])
        if form == "csv":
            assert [cell.partition(" [")[0] for cell in rows.pop(0)] == names
        assert [len(row) for row in rows] == [len(names)] * len(chosen or [0, 1, 2])
        if "index" in names:
            at = names.index("index")
            assert [int(row[at]) for row in rows] == sorted(chosen or [0, 1, 2])


REFUSED = {
    "a field": (["--query-gpu=name,foo", "--format=csv"], 2, 'Field "foo" is not a valid field'),
    "no format": (["--query-gpu=name"], 1, '"--format=" switch is missing'),
    "an option": (["--foo"], 1, "Invalid combination of input arguments"),
    "a word": (["dmon"], 1, "Invalid combination of input arguments"),
    "a GPU": (["-i", "7"], 6, "No devices were found"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_command_ends_with_the_text_and_status_of_nvidia_smi(name):
    words, status, text = REFUSED[name]
    with simgpu.as_cuda(2):
        printed, ended = smi.answer(words, process.gpus)
    assert ended == status
    assert text in printed


def test_nvidia_smi_fails_after_its_run(capsys, tmp_path):
    assert smi.main(["-L"], str(tmp_path / "ended")) == 9
    assert "couldn't communicate with the NVIDIA driver" in capsys.readouterr().out


def test_table_has_the_columns_of_nvidia_smi():
    with simgpu.as_cuda(2, model=["A100", "RTX 4080 SUPER"]):
        x = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:1")
        text, _ = smi.answer([], process.gpus)
        ask, name = Nvml().library.nvmlSystemGetProcessName, ctypes.create_string_buffer(4096)
        assert (ask(os.getpid(), name, 4096), name.value.decode()) == (0, sys.executable)
        assert ask(os.getppid(), name, 4096) == library.NOT_FOUND
    lines = text.splitlines()[1:]
    assert {len(line) for line in lines} == {91, 0}
    assert "Driver Version: 580." in text
    assert "|       0MiB /  40339MiB |" in text
    assert "|      30MiB /  16072MiB |" in text
    assert lines[-2].split()[1:6] == ["1", "N/A", "N/A", str(os.getpid()), "C"]
    assert lines[-2].endswith(f" {x.nbytes // MIB}MiB |")


def test_utilization_is_that_of_the_clock(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with simgpu.as_cuda(2, model="A100"):
        with simgpu.clock("A100"):
            x = torch.ones(1000, 1000, device="cuda:0")
            for _ in range(10):
                x = x @ x
            torch.cuda.synchronize(0)
            nvml = Nvml()
            rates = [nvml.ask("UtilizationRates", nvml.handle(i), Rates()).gpu for i in (0, 1)]
            assert rates[0] == 0
            assert 50 < rates[1] <= 100
            shown = re.findall(r"(\d+)% +Default", smi.answer([], process.gpus)[0])
            assert [rate != "0" for rate in shown] == [False, True]
        assert nvml.ask("UtilizationRates", nvml.handle(1), Rates()).gpu == 0


def test_library_ends_with_the_block():
    """A client that keeps the library, as pynvml does, loads it again."""
    client = types.ModuleType("copy_of_pynvml")
    client._nvmlGetFunctionPointer_cache = {"nvmlInit": 1}
    number = ctypes.c_int()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "copy_of_pynvml", client)
        with simgpu.as_cuda(1):
            client.nvmlLib = ctypes.CDLL(NAME)
            ask = client.nvmlLib.nvmlSystemGetCudaDriverVersion_v2
            assert ask(ctypes.byref(number)) == library.UNINITIALIZED
            assert client.nvmlLib.nvmlInit_v2() == 0
            assert ask(ctypes.byref(number)) == 0
            assert number.value == CUDA_NUMBER
            client.nvmlLib.nvmlInit_v2()
            client.nvmlLib.nvmlShutdown()
            assert ask(ctypes.byref(number)) == 0  # for the first nvmlInit
            words = (ctypes.c_ulong * 32)()
            assert client.nvmlLib.nvmlDeviceGetCpuAffinity(1, 32, words) == 0
            bits = 8 * ctypes.sizeof(ctypes.c_ulong)
            cpus = {at for at in range(32 * bits) if words[at // bits] >> at % bits & 1}
            assert cpus == os.sched_getaffinity(0)
            assert client.nvmlLib.nvmlDeviceGetFanSpeed(None, None) == library.NOT_SUPPORTED
            with pytest.raises(AttributeError, match="undefined symbol"):
                _ = client.nvmlLib.nvmlDeviceGetMemoryInfo2_v9
        assert client.nvmlLib is None
        assert client._nvmlGetFunctionPointer_cache == {}
        assert ask(ctypes.byref(number)) == library.UNINITIALIZED
        with simgpu.as_cuda(1):
            assert ask(ctypes.byref(number)) == library.UNINITIALIZED
    with pytest.raises(OSError, match=NAME):
        ctypes.CDLL(NAME)


@pytest.mark.parametrize(("result", "forced"), [(0, False), (0, True), (9, False)])
def test_real_library_is_loaded_unless_forced(result, forced):
    """A real one without a driver, whose nvmlInit fails, is none."""

    load, client = ctypes.CDLL.__init__, types.ModuleType("copy_of_pynvml")
    client.nvmlLib = object()

    def stock(self, name, *args, **kwargs):
        if name != NAME:
            load(self, name, *args, **kwargs)
        self.real = name
        self.nvmlInit_v2 = self.nvmlShutdown = lambda: result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes.CDLL, "__init__", stock)
        patch.setitem(sys.modules, "copy_of_pynvml", client)
        with simgpu.as_cuda(1, force=forced):
            assert (client.nvmlLib is None) == forced
            loaded = ctypes.CDLL(NAME)
            assert hasattr(loaded, "real") == (result == 0 and not forced)
            assert ctypes.CDLL(None).real is None
