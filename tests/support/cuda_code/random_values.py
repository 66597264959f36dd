"""The values that each random operator draws: what only kernels of a GPU can show.

A case is a call of `offsets.CALLS`, a number of elements, and a model of GPU. What is seen of a
tensor is its dtype, a checksum of all its bytes, and the bits of a few elements as integers. Two
outcomes agree bit for bit, or within the rounding of the functions (logarithm, sine, tangent) that
numbers pass on their way, which a GPU and the host compute by other formulas.
"""

import math
import struct
import warnings
import zlib

import torch
from torch.utils._pytree import tree_flatten

from tests.support.cuda_code import offsets

HARDWARE_ONLY = True  # an emulated CUDA runs no kernel
# Beside random numbers these compute sums, whose order belongs to the GPU's libraries.
_COMPUTED = ("attention", "LSTM")
_SHOWN = 8
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def cases(model):
    """Each call with few, some and more elements than the GPU has threads."""
    threads = offsets.THREADS[model]
    for name in offsets.CALLS:
        for n in (5, 1000, threads + 1, 4 * threads + 3):
            if name.startswith(_COMPUTED) or n > offsets.most(name, threads):
                continue
            yield {"call": name, "n": n, "model": model}


def _seen(tensor):
    flat = tensor.detach().cpu().contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    bits = flat.flatten().view(_SAME_SIZE[flat.element_size()])
    step = max(1, len(bits) // _SHOWN)
    checksum = f"{zlib.crc32(bits.numpy().tobytes()):08x}"
    return [str(tensor.dtype)[6:], checksum, bits[::step][:_SHOWN].tolist()]


def run(case, side):
    """What is seen of each tensor that the call returns, or the type of its error."""
    device = side.device()
    side.module.manual_seed(7)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = offsets.CALLS[case["call"]](case["n"], device)
    except (RuntimeError, ValueError) as raised:
        return type(raised).__name__
    return [_seen(leaf) for leaf in tree_flatten(results)[0]]


# How the bits of a part are packed: as an integer, and as what they are.
_PACKED = {"float32": "i f", "float64": "q d", "complex64": "i f", "complex128": "q d"}
# Of a tangent near its pole, and of numbers around 1 elsewhere. Halves are rounded from float32:
# the few elements that are shown are the same, and one in thousands rounds to its neighbour.
_ROUNDING = {"f": 2.0**-15, "d": 2.0**-44}


def agree(recorded, seen):
    """Whether outcomes are the same but for rounding."""
    if recorded == seen or isinstance(recorded, str) or isinstance(seen, str):
        return recorded == seen
    return len(recorded) == len(seen) and all(map(_close, recorded, seen))


def _close(one, other):
    (dtype, _, bits), (other_dtype, _, other_bits) = one, other
    if dtype != other_dtype or dtype not in _PACKED:
        is_half = dtype in ("float16", "bfloat16", "complex32")
        return dtype == other_dtype and is_half and bits == other_bits
    integer, kind = _PACKED[dtype].split()
    pairs = zip(bits, other_bits, strict=True)
    numbers = (
        [struct.unpack(kind, struct.pack(integer, value))[0] for value in pair] for pair in pairs
    )
    bound = _ROUNDING[kind]
    return all(math.isclose(*pair, rel_tol=bound, abs_tol=bound) for pair in numbers)
