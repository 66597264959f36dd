"""CUDA's error messages where tensors of one call lie on different devices.

Each operator is called with one of its arguments elsewhere, each argument in turn, on the CPU and
on another device. The expected words are CUDA's, with the device's type in place of "cuda", and
the same rows hold on real GPUs. There are two kinds: a kernel's wrapper names the argument and
itself; elementwise kernels name the two devices. More operators are in
tests/support/cuda_code/two_devices.py, with what CUDA's own code said of each.
"""

import re

import pytest
import torch
from hypothesis import strategies as st
from torch.nn import functional as F

X = torch.arange(9.0).reshape(3, 3)
V = X[0]
B = X[None]
I = torch.tensor([0, 2, 1])  # noqa: E741  # as in index
M = X > 4

# Operator: what is called, its tensors, and the names of the arguments and of CUDA's wrapper.
NAMED = {
    "mm": (torch.mm, (X, X), ("self", "mat2"), "mm"),
    "bmm": (torch.bmm, (B, B), ("self", "mat2"), "bmm"),
    "addmm": (torch.addmm, (V, X, X), ("self", "mat1", "mat2"), "addmm"),
    "dot": (torch.dot, (V, V), ("self", "tensor"), "_dot"),
    "index_select": (
        lambda x, i: x.index_select(0, i),
        (X, I),
        ("self", "index"),
        "_index_select",
    ),
    "gather": (lambda x, i: x.gather(1, i), (X, I[None]), ("self", "index"), "gather"),
    "scatter": (
        lambda x, i, y: x.scatter(1, i, y),
        (X, I[None], X),
        ("self", "index", "src"),
        "scatter_src",
    ),
    "scatter_value": (
        lambda x, i: x.scatter(1, i, 2.0),
        (X, I[None]),
        ("self", "index"),
        "scatter_value",
    ),
    "scatter_add": (
        lambda x, i, y: x.scatter_add(1, i, y),
        (X, I[None], X),
        ("self", "index", "src"),
        "scatter_add",
    ),
    "take": (torch.take, (X, I), ("self", "index"), "_take"),
    "masked_select": (torch.masked_select, (X, M), ("self", "mask"), "_masked_select"),
    "masked_scatter_": (
        lambda x, m, y: x.masked_scatter_(m, y),
        (X, M, X),
        ("self", "mask", "source"),
        "_masked_scatter_",
    ),
    "cat": (lambda *xs: torch.cat(xs), (X, X, X), ("tensors", "tensors", "tensors"), "cat"),
    "equal": (torch.equal, (X, X), ("self", "other"), "_equal"),
    "cdist": (torch.cdist, (X, X), ("x1", "x2"), "__cdist_forward"),
    "searchsorted": (
        torch.searchsorted,
        (V, X),
        ("sorted_sequence", "self"),
        "Tensor_searchsorted",
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (3,), w, b),
        (X, V, V),
        ("input", "weight", "bias"),
        "_native_layer_norm",
    ),
    "nll_loss": (
        lambda x, i, w: F.nll_loss(x, i, w),
        (X, I, V),
        ("self", "target", "weight"),
        "nll_loss_forward",
    ),
    "grid_sample": (
        lambda x, g: F.grid_sample(x[None, None], g, align_corners=False),
        (X, torch.zeros(1, 2, 2, 2)),
        ("input", "grid"),
        "_grid_sampler_2d",
    ),
    "mm_out": (
        lambda x, y, o: torch.mm(x, y, out=o),
        (X, X, X),
        ("self", "mat2", "out"),
        "mm_out_out",
    ),
    "index_select_out": (
        lambda x, i, o: torch.index_select(x, 0, i, out=o),
        (X, I, torch.empty(3, 3)),
        ("self", "index", "out"),
        "out_index_select_out",
    ),
    "addmm_": (
        lambda x, y, z: x.addmm_(y, z),
        (X, X, X),
        ("self", "mat1", "mat2"),
        "addmm_",
    ),
}

ELEMENTWISE = {
    "add": (torch.add, (X, X)),
    "pow": (torch.pow, (X, X)),
    "logical_and": (torch.logical_and, (M, M)),
    "where": (torch.where, (M, X, X)),
    "lerp": (lambda x, y: x.lerp(y, 0.5), (X, X)),
    "addcmul": (torch.addcmul, (X, X, X)),
    "mse_loss": (F.mse_loss, (X, X)),
    "ldexp": (torch.ldexp, (X, X)),
    "allclose": (torch.allclose, (X, X)),
    "add_": (lambda x, y: x.add_(y), (X, X)),
    "add_out": (lambda x, y, o: torch.add(x, y, out=o), (X, X, X)),
    "exp_out": (lambda x, o: torch.exp(x, out=o), (X, X)),
    "foreach_add": (lambda x, y: torch._foreach_add([x, x], [y, y]), (X, X)),
    "index_put": (lambda x, y: x.__setitem__(I, y), (X, X)),
}


def placed(data, devices, tensors, slot):
    """The tensors on one device, but the one in `slot` elsewhere; and the two devices."""
    home = data.draw(st.sampled_from(devices))
    others = [torch.device("cpu"), *(d for d in devices if d != home)]
    away = data.draw(st.sampled_from(others))
    places = [away if k == slot else home for k in range(len(tensors))]
    # What is written to has to be a copy, also on the CPU.
    return home, away, [t.clone().to(p) for t, p in zip(tensors, places, strict=True)]


def rows(table):
    return [(name, slot) for name in table for slot in range(len(table[name][1]))]


def check_kernel(devices, name, slot, data):
    """A kernel names the argument that is elsewhere, and itself."""
    function, tensors, names, method = NAMED[name]
    home, away, tensors = placed(data, devices, tensors, slot)
    # Outputs are compared with first, then the arguments in order.
    order = sorted(range(len(names)), key=lambda k: names[k] != "out")
    first, second = order[:2]
    stranger, here, there = (second, home, away) if slot == first else (slot, away, home)
    kind = "CUDA" if home.type == "cuda" else home.type
    with pytest.raises(RuntimeError) as caught:
        function(*tensors)
    assert str(caught.value).splitlines()[0] == (
        f"Expected all tensors to be on the same device, but got {names[stranger]} is on {here}, "
        f"different from other tensors on {there} (when checking argument in method "
        f"wrapper_{kind}_{method})"
    )


def check_elementwise_kernel(devices, name, slot, data):
    """An elementwise kernel names the two devices, and has written nothing."""
    function, tensors = ELEMENTWISE[name]
    home, away, tensors = placed(data, devices, tensors, slot)
    before = [t.clone() for t in tensors]
    with pytest.raises(RuntimeError) as caught:
        function(*tensors)
    words = str(caught.value).splitlines()[0]
    pattern = r"Expected all tensors to be on the same device, but found at least two devices, "
    found = re.fullmatch(pattern + r"(\S+) and (\S+)!", words)
    assert found, words
    assert set(found.groups()) == {str(home), str(away)}
    # Nothing was written before the error was noticed.
    assert all(map(torch.equal, before, tensors))
