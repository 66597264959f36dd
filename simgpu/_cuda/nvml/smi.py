"""The command nvidia-smi, as far as programs and libraries call it. Needs no torch.

Layouts, names of fields, texts of errors and exit statuses are those of driver 580.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from simgpu._cuda.nvml import run_folder
from simgpu._cuda.nvml.figures import CUDA_TEXT, DRIVER, FIELDS, TEMPERATURE, Gpu, Process, mib

HELP = f"""NVIDIA System Management Interface -- v{DRIVER}, of simulated GPUs (simgpu)

nvidia-smi [OPTION1 [ARG1]] ...

    -L,   --list-gpus                 One line for each GPU.
    -i,   --id=                       Only these GPUs, by number, UUID or bus id.
    -q -x                             Everything, as XML.
          --query-gpu=                Fields of each GPU, with commas between them.
          --query-compute-apps=       Fields of each process, with commas between them.
          --format=                   csv, with noheader and nounits as you like.

Fields of a GPU: count, {", ".join(FIELDS)}.
"""
_INVALID = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."
_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running."
)

# Other names of fields.
_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
}
_OF_PROCESS: dict[str, tuple[str, Callable[[Gpu, Process], object]]] = {
    "gpu_name": ("", lambda gpu, _: gpu.model.name),
    "gpu_uuid": ("", lambda gpu, _: gpu.uuid),
    "gpu_bus_id": ("", lambda gpu, _: gpu.bus_id),
    "pid": ("", lambda _, process: process.pid),
    "process_name": ("", lambda _, process: process.name),
    "used_gpu_memory": ("MiB", lambda _, process: mib(process.used)),
}
_ALIASES_OF_PROCESS = {"used_memory": "used_gpu_memory", "name": "process_name"}


class _Ends(Exception):
    """Ends the command with a line and an exit status."""


def _csv(
    fields: dict[str, tuple[str, Any]], aliases: dict[str, str], names: str, form: str, rows: Any
) -> str:
    """The fields of each row, after a line of their names unless `form` has noheader."""
    wanted = {word.strip() for word in form.split(",")}
    if not {"csv"} <= wanted <= {"csv", "noheader", "nounits"}:
        raise _Ends("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.", 1)
    columns = []
    for word in names.split(","):
        name = aliases.get(word.strip(), word.strip())
        if name not in fields:
            raise _Ends(f'Field "{word.strip()}" is not a valid field to query.\n', 2)
        columns.append((name, *fields[name]))

    def cell(unit: str, value: object) -> str:
        if value is None:
            return "[N/A]"
        return f"{value} {unit}" if unit and "nounits" not in wanted else str(value)

    heads = [f"{name} [{unit}]" if unit else name for name, unit, _ in columns]
    lines = [] if "noheader" in wanted else [", ".join(heads)]
    lines += [", ".join(cell(unit, ask(*row)) for _, unit, ask in columns) for row in rows]
    return "".join(f"{line}\n" for line in lines)


# What nvidia-smi prints without arguments: before the GPUs, for each, and for its processes.
_HEAD = f"""\
+{"-" * 89}+
| NVIDIA-SMI {DRIVER:<23}Driver Version: {DRIVER:<15}CUDA Version: {CUDA_TEXT:<9}|
+{"-" * 41}+{"-" * 24}+{"-" * 22}+
| GPU  {"Name":<21}Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf  {"Pwr:Usage/Cap":>21} | {"Memory-Usage":>22} | GPU-Util  Compute M. |
|{"":41}|{"":24}|{"MIG M.":>21} |
|{"=" * 41}+{"=" * 24}+{"=" * 22}|
"""
_GPU = f"""\
|{{number:>4}}  {{name:<31}}On  |   {{bus_id}} Off |{"N/A":>21} |
| N/A   {TEMPERATURE}C    P0{{draw:>15}}W / {{limit:>4}}W |{{used:>8}}MiB / {{total:>6}}MiB \
|{{busy:>7}}%{"Default":>13} |
|{"":41}|{"":24}|{"N/A":>21} |
+{"-" * 41}+{"-" * 24}+{"-" * 22}+
"""
_PROCESSES = f"""
+{"-" * 89}+
| {"Processes:":<88}|
|  GPU   GI   CI              PID   Type   {"Process name":<36}GPU Memory |
|        ID   ID{"Usage":>68}      |
|{"=" * 89}|
"""


def table(machine: Sequence[Gpu]) -> str:
    """What nvidia-smi prints without arguments."""
    text = f"{time.strftime('%a %b %e %H:%M:%S %Y'):<31}\n{_HEAD}"
    apps = ""
    for gpu in machine:
        text += _GPU.format(
            number=gpu.number,
            name=gpu.model.name[:30],
            bus_id=gpu.bus_id,
            draw=gpu.power_draw,
            limit=gpu.power_limit,
            used=mib(gpu.used),
            total=mib(gpu.total),
            busy=gpu.utilization,
        )
        for each in gpu.processes:
            name = each.name if len(each.name) <= 37 else f"...{each.name[-34:]}"
            apps += f"|  {gpu.number:>3}   N/A  N/A  {each.pid:>14}      C   {name:<37}"
            apps += f"{mib(each.used):>6}MiB |\n"
    apps = apps or f"|  {'No running processes found':<87}|\n"
    return f"{text}{_PROCESSES}{apps}+{'-' * 89}+\n"


# The elements of a GPU in `nvidia-smi -q -x` that hold a field, or those within them.
_ELEMENTS = """
product_name=name uuid=uuid minor_number=index serial=serial vbios_version=vbios_version
persistence_mode=persistence_mode display_mode=display_mode display_active=display_active
mig_mode/current_mig=mig.mode.current mig_mode/pending_mig=mig.mode.pending
pci/pci_bus=pci.bus pci/pci_device=pci.device pci/pci_domain=pci.domain pci/pci_bus_id=pci.bus_id
fan_speed=fan.speed performance_state=pstate compute_mode=compute_mode
fb_memory_usage/total=memory.total fb_memory_usage/reserved=memory.reserved
fb_memory_usage/used=memory.used fb_memory_usage/free=memory.free
utilization/gpu_util=utilization.gpu utilization/memory_util=utilization.memory
utilization/encoder_util=utilization.encoder utilization/decoder_util=utilization.decoder
ecc_mode/current_ecc=ecc.mode.current ecc_mode/pending_ecc=ecc.mode.pending
temperature/gpu_temp=temperature.gpu temperature/memory_temp=temperature.memory
gpu_power_readings/power_state=pstate gpu_power_readings/average_power_draw=power.draw.average
gpu_power_readings/instant_power_draw=power.draw.instant
gpu_power_readings/current_power_limit=power.limit
gpu_power_readings/default_power_limit=power.default_limit
gpu_power_readings/max_power_limit=power.max_limit
clocks/graphics_clock=clocks.current.graphics clocks/sm_clock=clocks.current.sm
clocks/mem_clock=clocks.current.memory max_clocks/graphics_clock=clocks.max.graphics
max_clocks/sm_clock=clocks.max.sm max_clocks/mem_clock=clocks.max.memory
"""


def _add(parent: ElementTree.Element, **texts: object) -> None:
    for name, text in texts.items():
        ElementTree.SubElement(parent, name).text = "N/A" if text is None else str(text)


def _xml(machine: Sequence[Gpu]) -> str:
    root = ElementTree.Element("nvidia_smi_log")
    _add(root, timestamp=time.strftime("%a %b %e %H:%M:%S %Y"), driver_version=DRIVER)
    _add(root, cuda_version=CUDA_TEXT, attached_gpus=len(machine))
    for gpu in machine:
        about = ElementTree.SubElement(root, "gpu", id=gpu.bus_id)
        for word in _ELEMENTS.split():
            path, _, field = word.partition("=")
            group, _, name = path.rpartition("/")
            parent = about.find(group) if group else about
            if parent is None:
                parent = ElementTree.SubElement(about, group)
            unit, ask = FIELDS[field]
            value, unit = ask(gpu), "C" if name == "gpu_temp" else unit
            _add(parent, **{name: f"{value} {unit}" if unit and value is not None else value})
        processes = ElementTree.SubElement(about, "processes")
        for each in gpu.processes:
            info = ElementTree.SubElement(processes, "process_info")
            _add(info, gpu_instance_id=None, compute_instance_id=None, pid=each.pid, type="C")
            _add(info, process_name=each.name, used_memory=f"{mib(each.used)} MiB")
    ElementTree.indent(root, "\t")
    text = ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    return f"{head}{text}\n"


_FLAGS = {"-L": "--list-gpus", "-q": "--query", "-x": "--xml-format", "-h": "--help"}
_WITH_VALUE = ("--id", "--query-gpu", "--query-compute-apps", "--format")


def _options(words: Sequence[str]) -> dict[str, str]:
    """The options by their long names."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, has_value, value = rest.pop(0).partition("=")
        name = {**_FLAGS, "-i": "--id"}.get(name, name)
        if name in _WITH_VALUE:
            if not has_value:
                value = rest.pop(0) if rest else ""
        elif has_value or name not in _FLAGS.values():
            raise _Ends(_INVALID, 1)
        found[name] = value
    return found


def _chosen(machine: Sequence[Gpu], ids: str | None) -> list[Gpu]:
    if ids is None:
        return list(machine)
    names = [name.strip() for name in ids.split(",")]
    found = [
        gpu for gpu in machine if {str(gpu.number), gpu.uuid, gpu.bus_id, gpu.bus_id[4:]} & {*names}
    ]
    if not found:
        raise _Ends("No devices were found", 6)
    return found


def answer(words: Sequence[str], gpus: Callable[[], list[Gpu]]) -> tuple[str, int]:
    """What nvidia-smi prints for a command line, and its exit status."""
    try:
        return _answer(words, gpus), 0
    except _Ends as ends:
        return f"{ends.args[0]}\n", ends.args[1]


def _answer(words: Sequence[str], gpus: Callable[[], list[Gpu]]) -> str:
    options = _options(words)
    if "--help" in options:
        return HELP
    try:
        everything = gpus()
    except OSError:
        raise _Ends(_NO_DRIVER, 9) from None
    machine = _chosen(everything, options.pop("--id", None))
    form = options.pop("--format", "")
    kinds = tuple(sorted(options))
    if not kinds:
        return table(machine)
    if kinds == ("--list-gpus",):
        return "".join(f"GPU {x.number}: {x.model.name} (UUID: {x.uuid})\n" for x in machine)
    if kinds == ("--query", "--xml-format"):
        return _xml(machine)
    if kinds == ("--query-gpu",):
        fields = {**FIELDS, "count": ("", lambda gpu: len(everything))}
        return _csv(fields, _ALIASES, options["--query-gpu"], form, [(gpu,) for gpu in machine])
    if kinds == ("--query-compute-apps",):
        names = options["--query-compute-apps"]
        rows = [(gpu, process) for gpu in machine for process in gpu.processes]
        return _csv(_OF_PROCESS, _ALIASES_OF_PROCESS, names, form, rows)
    raise _Ends(_INVALID, 1)


def main(words: Sequence[str], folder: str) -> int:
    """Answer a command line about the machine of a run; returns the exit status."""
    text, status = answer(words, lambda: run_folder.gpus(Path(folder)))
    sys.stdout.write(text)
    return status
