"""Asks one client of NVML or nvidia-smi about two GPUs, of which the second has 20 MiB in use."""

import json
import os
import sys
from contextlib import suppress

import torch

x = torch.ones(5 * 2**20, device="cuda:1")


def pynvml():
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    about = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handles[1])
    assert [(each.pid, each.usedGpuMemory >> 20) for each in processes] == [(os.getpid(), 20)]
    assert str(os.getpid()) in torch.cuda.list_gpu_processes(1)
    assert torch.cuda.device_memory_used(1) == about[1].used
    assert torch.cuda.temperature(1) > 0
    assert torch.cuda.utilization(1) == torch.cuda.memory_usage(1) == 0
    assert torch.cuda.power_draw(1) == 40_000
    assert torch.cuda.clock_rate(1) == pynvml.nvmlDeviceGetClockInfo(handles[1], 1)
    with suppress(pynvml.NVMLError_NotSupported):
        raise AssertionError(pynvml.nvmlDeviceGetFanSpeed(handles[0]))
    return [
        [pynvml.nvmlDeviceGetName(h), m.used >> 20] for h, m in zip(handles, about, strict=True)
    ]


def gpustat():
    import gpustat

    gpustat.print_gpustat()
    found = gpustat.new_query()
    assert [each["pid"] for each in found[1].processes] == [os.getpid()]
    return [[gpu.name, gpu.memory_used] for gpu in found]


def nvitop():
    from nvitop import Device
    from nvitop.cli import main

    sys.argv = ["nvitop", "--once"]
    main()
    found = [device.as_snapshot() for device in Device.all()]
    assert {each.power_status for each in found} == {"40W / 400W"}
    assert list(Device(1).processes()) == [os.getpid()]
    return [[each.name, each.memory_used >> 20] for each in found]


def GPUtil():
    import GPUtil

    assert GPUtil.getAvailable(limit=4) == [0, 1]
    return [[gpu.name, int(gpu.memoryUsed)] for gpu in GPUtil.getGPUs()]


def codecarbon():
    from codecarbon import OfflineEmissionsTracker

    tracker = OfflineEmissionsTracker(country_iso_code="DEU", save_to_file=False)
    tracker.start()
    for _ in range(10):
        x.mul_(2)
    tracker.stop()
    seen = tracker.final_emissions_data
    assert seen.gpu_energy > 0
    return [[seen.gpu_model, seen.gpu_count]]


def accelerate():
    from accelerate.utils import environment

    assert environment.check_cuda_p2p_ib_support()
    environment.set_numa_affinity(0)
    names, count = environment.get_gpu_info()
    return [[name, environment.get_driver_version()] for name in names[:count]]


def ray():
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as Manager

    kind = Manager.get_current_node_accelerator_type()
    return [[kind, Manager.get_current_node_num_accelerators()]]


def collect_env():
    from torch.utils import collect_env

    seen = collect_env.get_env_info()
    return [[seen.nvidia_gpu_models, seen.nvidia_driver_version]]


print(json.dumps({"found": globals()[sys.argv[1]]()}))
