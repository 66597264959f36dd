"""Which operators, dtypes and samples the sweep uses: those of PyTorch's own operator database.

The database's samples are made for the CPU, from a fixed seed. An entry with more than MOST of
them is represented by MOST, spread evenly over the list: the long lists are products of every
option with every other.
"""

import random

import numpy
import torch
from hypothesis import settings

# The database registers and loads hypothesis profiles of its own, for the whole process.
PROFILE = settings.get_current_profile_name()
DEV = settings() if PROFILE == "default" else settings.get_profile("dev")
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402  # see above

settings.register_profile("dev", DEV)
settings.load_profile(PROFILE)

MOST = 75
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)

ENTRIES = {entry.formatted_name: entry for entry in op_db}


def name_of(dtype):
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def dtypes_of(entry):
    """The dtypes of the sweep that `entry` has on the CPU."""
    supported = entry.supported_dtypes("cpu")
    return [dtype for dtype in DTYPES if dtype in supported]


def in_place(entry):
    """The operator's in-place form, or None."""
    return entry.get_inplace() or entry.inplace_operator_variant


def cases():
    """Names of all cases: "forward add float32", "out add float32", ..."""
    found = []
    for name, entry in ENTRIES.items():
        dtypes = dtypes_of(entry)
        found += [f"forward {name} {name_of(dtype)}" for dtype in dtypes]
        if torch.float32 in dtypes:
            if entry.supports_autograd:
                found.append(f"backward {name} float32")
            if entry.supports_out:
                found.append(f"out {name} float32")
            if in_place(entry) is not None:
                found.append(f"in_place {name} float32")
    return found


def samples(entry, dtype, *, requires_grad=False, most=MOST):
    """Return (input, args, kwargs) for each sample of `entry`, on the CPU."""
    torch.default_generator.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    # Not `entry.sample_inputs`, which adds nothing but a walk up the stack and a seed per sample:
    # they would take ten times as long as everything else.
    found = list(entry.sample_inputs_func(entry, "cpu", dtype, requires_grad))
    if len(found) > most:
        found = [found[round(k * (len(found) - 1) / (most - 1))] for k in range(most)]
    return [(sample.input, tuple(sample.args), dict(sample.kwargs)) for sample in found]
