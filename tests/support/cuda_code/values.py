"""Results and gradients of PyTorch's operator database: what only kernels of a GPU can show.

A case names an operator, a dtype and one of its first samples, with a checksum of the bytes of its
arguments. What is seen of each tensor is its dtype, its largest magnitude, and a few elements. Two
outcomes agree if their elements differ by less than rounding: a GPU adds in another order.
"""

import math
import warnings
import zlib

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.support.cuda_code import operators

HARDWARE_ONLY = True  # an emulated CUDA runs no kernel
SAMPLES = {  # of each dtype
    torch.float32: 2,
    torch.complex64: 1,
    torch.int64: 1,
    torch.bfloat16: 1,
}
# Vectors of any sign, or of a phase: which one comes out depends on the CPU, too. Not compared.
_ANY_SIGN = ("linalg.eig", "linalg.eigh", "linalg.svd", "pca_lowrank", "svd", "svd_lowrank")
_SHOWN = 12
# Of the largest magnitude, in units of the dtype's last place.
_ROUNDING = {"float32": 256, "complex64": 256, "float64": 2.0**16, "bfloat16": 4, "float16": 4}


def _samples(name, dtype):
    op = _database().get(name)
    return operators.samples(op, dtype, dtype.is_floating_point or dtype.is_complex) if op else []


def _arguments(sample):
    return sample.input, sample.args, sample.kwargs


_kept = {}


def _database():
    if not _kept:
        _kept.update(operators.database())
    return _kept


def _checksum(arguments):
    summary = 0
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            plain = leaf.detach().resolve_conj().resolve_neg().contiguous().flatten()
            summary = zlib.crc32(plain.view(torch.uint8).numpy().tobytes(), summary)
        elif not isinstance(leaf, torch.Tensor):
            summary = zlib.crc32(repr(leaf).partition(" at 0x")[0].encode(), summary)
    return f"{summary:08x}"


def cases(model):
    """The first samples of each operator and dtype."""
    if model != "h100":
        return
    for name in sorted(_database()):
        if name.startswith(("empty", "new_empty")):
            continue  # they compute nothing
        for dtype, count in SAMPLES.items():
            for number, sample in enumerate(_samples(name, dtype)[:count]):
                arguments = _checksum(_arguments(sample))
                yield {
                    "op": name,
                    "dtype": str(dtype)[6:],
                    "sample": number,
                    "arguments": arguments,
                }


def _there(value, side, leaves):
    """A value on the device; one with a gradient is added to `leaves`."""
    there = operators._there(value, side.device())
    if isinstance(value, torch.Tensor) and value.requires_grad:
        leaves.append(there.requires_grad_())
    return there


def _seen(leaf):
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
        return type(leaf).__name__
    flat = leaf.detach().cpu().resolve_conj().resolve_neg().flatten()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    some = flat[:: max(1, len(flat) // _SHOWN)].tolist()[:_SHOWN]
    most = 0.0
    if flat.is_floating_point():
        flat = flat.float() if flat.element_size() < 2 else flat  # 8 bits have few functions
        finite = flat[flat.isfinite()].double()
        most = float(f"{finite.abs().max():.4g}") if len(finite) else 0.0
        some = [float(f"{number:.9g}") for number in some]
    return {"dtype": str(leaf.dtype)[6:], "most": most, "some": some}


def run(case, side):
    """["refused", type of the error], or what is seen of each result, and of each gradient."""
    if case["op"] in _ANY_SIGN:
        return None
    found = _samples(case["op"], getattr(torch, case["dtype"]))[case["sample"] :]
    if not found or _checksum(_arguments(found[0])) != case["arguments"]:
        return None
    leaves: list = []
    try:
        with warnings.catch_warnings(), torch.backends.cudnn.flags(True, allow_tf32=False):
            warnings.simplefilter("ignore")
            first, more, named = tree_map(
                lambda value: _there(value, side, leaves), _arguments(found[0])
            )
            torch.manual_seed(0)
            results = tree_leaves(_database()[case["op"]](first, *more, **named))
            gradients = _gradients(results, leaves)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return ["refused", type(error).__name__]
    return [[_seen(leaf) for leaf in leaves] for leaves in (results, gradients)]


def _gradients(results, leaves):
    """Those of the sum of all results, each element with a weight of its own."""
    total = 0
    for leaf in results:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.layout == torch.strided:
            weights = torch.arange(leaf.numel(), device=leaf.device).remainder(7) - 3
            total = total + (leaf * weights.view(leaf.shape).to(leaf.dtype)).sum().abs()
    if not leaves or not isinstance(total, torch.Tensor):
        return []
    return torch.autograd.grad(total, leaves, allow_unused=True)


def agree(recorded, seen):
    """Whether outcomes are the same but for rounding."""
    if isinstance(recorded, dict) and isinstance(seen, dict):
        return recorded["dtype"] == seen["dtype"] and _close(recorded, seen)
    if isinstance(recorded, list) and isinstance(seen, list) and len(recorded) == len(seen):
        return all(map(agree, recorded, seen))
    return recorded == seen


def _close(recorded, seen):
    if recorded["dtype"] not in _ROUNDING:
        return recorded["some"] == seen["some"]
    unit = torch.finfo(getattr(torch, recorded["dtype"])).eps * _ROUNDING[recorded["dtype"]]
    bound = unit * max(recorded["most"], seen["most"])
    return len(recorded["some"]) == len(seen["some"]) and all(
        math.isclose(one, other, rel_tol=unit, abs_tol=bound) or (one != one and other != other)
        for one, other in zip(recorded["some"], seen["some"], strict=True)
    )
