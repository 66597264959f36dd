"""The variables of a process that runs on emulated GPUs, or on those of this machine."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.assurance.emulated_cuda.build import LIBRARY, build

ROOT = Path(__file__).parents[3]
MODELS = ("h100", "a100", "t4")


@dataclass(frozen=True)
class Machine:
    """Emulated GPUs: how many, which model, and how many bytes each has."""

    devices: int = 4
    model: str = "h100"
    memory: int = 2 << 30  # it is real memory where a program writes to it

    def variables(self):
        """What to add to the environment of a process. Builds the libraries if necessary."""
        folder = build()
        return {
            "LD_PRELOAD": _joined(str(folder / LIBRARY), "LD_PRELOAD"),
            "LD_LIBRARY_PATH": _joined(str(folder), "LD_LIBRARY_PATH"),
            "PYTHONPATH": _joined(str(ROOT), "PYTHONPATH"),
            "EMULATED_CUDA_DEVICES": str(self.devices),
            "EMULATED_CUDA_MODEL": self.model,
            "EMULATED_CUDA_MEMORY": str(self.memory),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }

    def environment(self, **more):
        """The whole environment of a process."""
        return os.environ | self.variables() | more


@dataclass(frozen=True)
class Hardware:
    """The GPUs of this machine, for recordings of hardware."""

    devices: int
    model: str  # the emulated model with as many multiprocessors
    memory: int  # bytes of the first one

    @classmethod
    def here(cls):
        """What torch finds. Raises RuntimeError where it finds none, or another model."""
        import torch

        name = torch.cuda.get_device_name(0)
        model = next((model for model in _AS_MODEL if model.upper() in name), None)
        if model is None:
            raise RuntimeError(f"{name} is none of {', '.join(_AS_MODEL)}: add it to _AS_MODEL")
        memory = torch.cuda.get_device_properties(0).total_memory
        return cls(torch.cuda.device_count(), _AS_MODEL[model], memory)

    def environment(self):
        """The whole environment of a process."""
        return os.environ | {"PYTHONPATH": _joined(str(ROOT), "PYTHONPATH")}


# An H200 is an H100 with more memory.
_AS_MODEL = {model: model for model in MODELS} | {"h200": "h100"}


def _joined(first, name):
    return os.pathsep.join(filter(None, (first, os.environ.get(name))))


def add_options(parser, devices=4):
    """The options of a command line that describe a machine."""
    parser.add_argument(
        "--devices", type=int, default=devices, metavar="N", help=f"default {devices}"
    )
    parser.add_argument("--model", choices=MODELS, default="h100", help="default h100")
    parser.add_argument(
        "--memory", type=int, default=Machine.memory, metavar="BYTES", help="of each device (2 GiB)"
    )


def machine_of(options):
    """The machine that parsed options describe."""
    return Machine(options.devices, options.model, options.memory)
