"""A side of a comparison: devices of CUDA, or simulated ones, and how words are compared."""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# How simulated devices and PyTorch name the type that is CUDA's here.
_NAMES = re.compile(r"simgpu|SIMGPU|privateuseone|PrivateUse1|PRIVATEUSEONE")
# How C++ calls the type of a tensor that is not CUDA's.
_TENSOR_TYPE = re.compile(r"\bcuda(Byte|Char|Double|Float|Half|Int|Long|Short)Type\b")


@dataclass(frozen=True)
class Side:
    """Where cases run: a device type with its module, and what gives values to kernels."""

    kind: str  # "cuda" or "simgpu"
    values: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    @property
    def module(self) -> Any:
        """torch.cuda, or torch.simgpu."""
        return getattr(torch, self.kind)

    def device(self, index=0):
        return torch.device(self.kind, index)


def words(text, most=300):
    """The first line of an error, with the same names for devices of either kind."""
    line = _NAMES.sub("cuda", str(text).partition("\n")[0])
    line = _TENSOR_TYPE.sub(r"torch.cuda.\1Tensor", line)
    return re.sub(r"0x[0-9a-f]+", "0x", line.replace("CUDA", "cuda"))[:most]


def error_of(error):
    """An error as plain data: its type and words. Subclasses of torch's types count as those."""
    names = [
        one.__name__ for one in type(error).__mro__ if one.__module__.split(".")[0] != "simgpu"
    ]
    return f"{names[0]}: {words(error)}"


def same_words(recorded, seen):
    """Whether words are the same; after CUDA's words of an error there may be more, with values."""
    if recorded == seen:
        return True
    is_error = re.match(r"\w+(Error|Exception): .", str(recorded))
    return bool(is_error) and str(seen).startswith(recorded)


def outcome(call):
    """The words of what a call returns or raises."""
    try:
        return words(call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error_of(error)
