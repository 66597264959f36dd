"""How long a kernel or a collective takes on a GPU, by peak rates and the usual formulas.

The FLOPs are counted by PyTorch (`torch.utils.flop_counter`); an operator without a formula there
is counted only by its bytes. The rules are those of torch/utils/_runtime_estimation.py: three
quarters of the peak rate are reached, and a dimension of stride 0 is read once. Its halving of the
FLOPs is left out, since the rates of data sheets count an addition and a multiplication as two.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from simgpu._clock.topology import Route
from simgpu._config.gpus import Model, models
from simgpu._core.operators import import_flop_counter, tensors_in, written

flop_registry: dict[Any, Callable[..., int]] = import_flop_counter().flop_registry

SHARE_OF_PEAK = 0.75  # of its FLOPs that a kernel reaches: flops_to_ns of PyTorch's rules

_RATES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
# Operators of the CPU that go by another name on CUDA, which is the one that has a formula.
_ON_CUDA = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "_scaled_dot_product_flash_attention_backward"
    ),
}


class Durations:
    """The peak rates of one GPU. Raises ValueError where its data sheet has too few."""

    def __init__(self, model: Model) -> None:
        if not model.memory_bandwidth or "fp32" not in model.peak_flops:
            known = ", ".join(key for key, each in models().items() if each.memory_bandwidth)
            raise ValueError(f"no rates are known of model {model.key!r}; there are {known}")
        self.model = model
        self._bandwidth = float(model.memory_bandwidth)

    def of(self, kernel: torch._ops.OpOverload, args: Any, kwargs: Any, result: Any) -> float:
        """Seconds of a kernel, without the gap before it, from its host arguments and results."""
        read = list(tensors_in(*args, *kwargs.values()))
        made = list(tensors_in(result)) or _changed(kernel, args, kwargs)
        moved = sum(map(nbytes, read)) + sum(map(nbytes, made))
        seconds = moved / self._bandwidth
        formula = _formula(kernel)
        if formula is None or not all(map(_is_plain, (*read, *made))):
            return seconds
        dtype = next((each.dtype for each in read if each.is_floating_point()), torch.float32)
        rate = SHARE_OF_PEAK * self.rate(dtype, _takes_tf32(kernel))
        named = {name: value for name, value in kwargs.items() if name not in ("out", "device")}
        return max(seconds, formula(*args, **named, out_val=result) / rate)

    def rate(self, dtype: torch.dtype, tf32: bool = False) -> float:
        """Peak operations per second. What a data sheet does not name runs at the rate of fp32."""
        peak = self.model.peak_flops
        if dtype in (torch.float64, torch.complex128):
            return peak["fp32"] / 2
        name = "tf32" if tf32 and dtype is torch.float32 else _RATES.get(dtype, "fp32")
        return float(peak.get(name, peak["fp32"]))


def nbytes(tensor: torch.Tensor) -> int:
    """The bytes that reading a host tensor once takes; of a sparse or nested one, of its parts."""
    if tensor.is_nested:
        return nbytes(tensor.values())
    if not _is_plain(tensor):
        sparse = tensor.layout is torch.sparse_coo
        values = tensor._values() if sparse else tensor.values()
        return 2 * nbytes(values)  # about as much again for the indices
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride or not size) * tensor.element_size()


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _changed(
    kernel: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """What an operator without results changes, such as those of torch._foreach."""
    changes = written(kernel)
    named = (*enumerate(args), *kwargs.items())
    return list(tensors_in(*(value for key, value in named if key in changes)))


@functools.cache
def _formula(kernel: torch._ops.OpOverload) -> Callable[..., int] | None:
    packet = kernel.overloadpacket
    name = _ON_CUDA.get(packet.__name__)
    return flop_registry.get(packet if name is None else getattr(torch.ops.aten, name))


def _takes_tf32(kernel: torch._ops.OpOverload) -> bool:
    """Whether PyTorch is set to compute float32 on the tensor cores, for this kind of kernel."""
    if "conv" in kernel._schema.name:
        return torch.backends.cudnn.allow_tf32
    return bool(torch._C._get_cublas_allow_tf32())


# How long a collective takes, by the usual formulas for rings and trees.
#
# n ranks, S bytes in all, links with a bandwidth B and a latency a per hop:
#
#     ring    all_reduce                  2 (n-1) a + 2 (n-1)/n S/B
#             all_gather, reduce_scatter, all_to_all
#                                         (n-1) a + (n-1)/n S/B
#             broadcast, reduce           (n-1) a + S/B
#     tree    all_reduce                  2 ceil(log2 n) a + 2 S/B
#             broadcast, reduce           ceil(log2 n) a + S/B
#     one to all, all to one              a + (n-1)/n S/B
#     send and recv                       a + S/B
#
# As NCCL does, a reduction takes the one of ring and tree that is quicker for its size.

_BOTH_WAYS = ("allreduce_", "allreduce_coalesced_", "barrier")
_TO_ALL = ("broadcast_", "reduce_")
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_")
_ROOTED = ("gather_", "scatter_")


def ring_seconds(op: str, ranks: int, nbytes: int, bandwidth: float, latency: float) -> float:
    """Seconds of a collective over a ring; `op` as in `c10d::`, `nbytes` of all ranks together."""
    moved = nbytes / bandwidth
    if op in _BETWEEN_TWO:
        return latency + moved
    if ranks == 1:
        return 0.0
    if op in _TO_ALL:
        return (ranks - 1) * latency + moved
    share = (ranks - 1) / ranks * moved
    if op in _ROOTED:
        return latency + share
    rounds = 2 if op in _BOTH_WAYS else 1
    return rounds * ((ranks - 1) * latency + share)


def tree_seconds(op: str, ranks: int, nbytes: int, bandwidth: float, latency: float) -> float:
    """Seconds over a tree: infinitely many of a collective that trees do not carry out."""
    if op not in (*_BOTH_WAYS, *_TO_ALL):
        return math.inf
    rounds = 2 if op in _BOTH_WAYS else 1
    return rounds * (math.ceil(math.log2(ranks)) * latency + nbytes / bandwidth * (ranks > 1))


def collective_seconds(op: str, ranks: int, nbytes: int, routes: Sequence[Route]) -> float:
    """The quicker one of ring and tree, over the slowest of the routes that it takes."""
    bandwidth = min((route.bandwidth for route in routes), default=math.inf)
    latency = max((route.latency for route in routes), default=0.0)
    return min(way(op, ranks, nbytes, bandwidth, latency) for way in (ring_seconds, tree_seconds))
