"""Which operator autocast casts, and how: the lists are CUDA's."""

import re
from pathlib import Path

import torch

from simgpu._ops.autocast import POLICIES, Policy


def cuda_policies():
    """The lists in the header that the installed PyTorch ships."""
    lists = {
        "AT_FORALL_LOWER_PRECISION_FP": Policy.LOWER_PRECISION,
        "AT_FORALL_FP32": Policy.FLOAT32,
        "AT_FORALL_FP32_SET_OPT_DTYPE": Policy.FLOAT32_DTYPE,
        "AT_FORALL_PROMOTE": Policy.WIDEST,
    }
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text().replace("\\\n", " ")
    found = {"binary_cross_entropy": Policy.BANNED}
    for macro, policy in lists.items():
        line = re.search(rf"#define {macro}\(_\)(.*)", text)
        for name, overload in re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", line[1]):
            found[f"{name}.{overload}" if overload else name] = policy
    line = re.search(r"#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE\(_\)(.*)", text)
    for name in re.findall(r'"(.*?)"', line[1]):
        found[name] = Policy.FLOAT32_OVERLOAD
    return found


def test_the_policies_are_cudas(simulated):
    """The lists are those of this PyTorch's header, and what is registered is what CUDA has."""
    here = cuda_policies()
    assert {name: policy for name, policy in POLICIES.items() if name in here} == here
    registered = {
        key: {
            name
            for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)
            if name.startswith("aten::")  # and not by a program
        }
        for key in ("AutocastCUDA", "AutocastPrivateUse1")
    }
    cuda = registered["AutocastCUDA"] - {"aten::_cudnn_rnn"}  # its layers cast by themselves
    assert registered["AutocastPrivateUse1"] == cuda
    assert {f"aten::{name}" for name in here} <= cuda  # PyTorch 2.15 names one elsewhere
