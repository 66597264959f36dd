"""Calls of PyTorch's operator database: which are refused, with which words, and their results.

A case names an operator, a dtype and one of its first samples, with a checksum of the sample's
arguments: another release of PyTorch may have others, and then the case is not compared.
"""

import contextlib
import itertools
import warnings
import zlib
from unittest import mock

import torch
from torch.utils._pytree import tree_flatten, tree_map

from tests.support.cuda_code.sides import error_of, same_words

DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.complex64, torch.complex32, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
SAMPLES = 3


def database():
    """The operators by full name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}


def samples(op, dtype, requires_grad=False):
    """The first samples of an operator for a dtype, on the CPU; none where it has none."""
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), _without_search_for_test():
            warnings.simplefilter("ignore")
            inputs = op.sample_inputs("cpu", dtype, requires_grad=requires_grad)
            return list(itertools.islice(inputs, SAMPLES))
    except Exception:  # made for the dtypes of the operator, and asked here for all
        return []


@contextlib.contextmanager
def _without_search_for_test():
    """The database reads the source of all callers for each sample; pytest has many."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    with (
        mock.patch.object(common_utils, "extract_test_fn", return_value=None),
        mock.patch.object(core, "extract_test_fn", return_value=None),
    ):
        yield


def checksum(sample):
    """A number for the arguments of a sample: shapes, dtypes, strides and what is no tensor."""

    def plain(value):
        if isinstance(value, torch.Tensor):
            strides = value.stride() if value.layout == torch.strided else value.layout
            return f"{value.dtype} {tuple(value.shape)} {strides}"
        return repr(value).partition(" at 0x")[0]

    parts = tree_flatten(tree_map(plain, (sample.input, sample.args, sample.kwargs)))[0]
    return f"{zlib.crc32(' '.join(parts).encode()):08x}"


def cases(model, names=None):
    """The first samples of each operator and dtype, or of those with the given names."""
    if model != "h100":
        return
    known = database()
    for name in sorted(known) if names is None else names:
        for dtype in DTYPES:
            for number, sample in enumerate(samples(known[name], dtype)):
                yield {
                    "op": name,
                    "dtype": str(dtype)[6:],
                    "sample": number,
                    "arguments": checksum(sample),
                }


def _there(value, device):
    """A value on the device; a tensor keeps its strides."""
    if isinstance(value, torch.device) or value == "cpu":
        return device if isinstance(value, torch.device) else str(device)
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.layout != torch.strided or not value.numel():
        return value.to(device)
    length = value.untyped_storage().nbytes() // value.element_size()
    flat = value.as_strided((length,), (1,), 0).to(device)
    return flat.as_strided(value.size(), value.stride(), value.storage_offset())


def _described(leaf):
    if not isinstance(leaf, torch.Tensor):
        return type(leaf).__name__
    strided = leaf.layout == torch.strided
    device = "cpu" if leaf.device.type == "cpu" else "device"
    return [
        str(leaf.dtype)[6:],
        list(leaf.shape),
        list(leaf.stride()) if strided else str(leaf.layout),
        device,
    ]


_kept: dict = {}  # the operators, and the samples of the last operator and dtype


def run(case, side):
    """["result", ...] or ["refused", words]; None where the sample is another."""
    if "database" not in _kept:
        _kept["database"] = database()
    op, key = _kept["database"].get(case["op"]), (case["op"], case["dtype"])
    if op is None:
        return None
    if _kept.get("key") != key:
        _kept["key"], _kept["samples"] = key, samples(op, getattr(torch, case["dtype"]))
    if len(_kept["samples"]) <= case["sample"]:
        return None
    sample = _kept["samples"][case["sample"]]
    if checksum(sample) != case["arguments"]:
        return None
    given = tree_map(
        lambda value: _there(value, side.device()), (sample.input, sample.args, sample.kwargs)
    )
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), side.values():
            warnings.simplefilter("ignore")
            out = op(given[0], *given[1], **given[2])
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return ["refused", error_of(error)]
    return ["result", [_described(leaf) for leaf in tree_flatten(out)[0]]]


def agree(recorded, seen):
    """Whether two outcomes are the same, but for strides that no element can show."""
    if recorded[0] == seen[0] == "refused":
        return same_words(recorded[1], seen[1])
    if recorded[0] != "result" or seen[0] != "result" or len(recorded[1]) != len(seen[1]):
        return recorded == seen
    return all(_same(one, other) for one, other in zip(recorded[1], seen[1], strict=True))


def _same(one, other):
    if not (isinstance(one, list) and isinstance(other, list)) or isinstance(one[2], str):
        return one == other
    if [one[0], one[1], one[3]] != [other[0], other[1], other[3]] or isinstance(other[2], str):
        return False
    if 0 in one[1]:
        return True
    return all(n == 1 or s == t for n, s, t in zip(one[1], one[2], other[2], strict=True))
