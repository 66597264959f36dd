"""`out=` arguments: computed in host tensors that can grow, then written back."""

from __future__ import annotations

from typing import Any

import torch

from simgpu._memory.ownership import adopt
from simgpu._memory.resizing import grow
from simgpu._native.dlpack_relabel import host_alias
from simgpu._runtime.launch import HOST_KEYS, Kernel, launch

_set_storage = torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed
_copy = torch.ops.aten.copy_.default._handle.redispatch_boxed


def compute_out(
    kernel: Kernel,
    index: int,
    host_args: list[Any],
    host_kwargs: dict[str, Any],
    outs: dict[str, Any],
) -> None:
    """Run an `out=` kernel on host aliases and give `outs` the shapes it decided on.

    Memory under an alias cannot grow. An output without elements, or all of them where one turns
    out too small, are stood in for by host tensors of the same shape and strides that can.
    """

    def compute(only_empty: bool) -> dict[str, Any]:
        hosts = {}
        for name, value in outs.items():
            pairs = zip(_as_list(value), _as_list(host_kwargs[name]), strict=True)
            chosen = [
                alias if only_empty and out.numel() else resizable_copy_like(out)
                for out, alias in pairs
            ]
            hosts[name] = chosen if isinstance(value, (list, tuple)) else chosen[0]
        launch(kernel, index, host_args, {**host_kwargs, **hosts})
        return hosts

    try:
        hosts = compute(only_empty=True)
    except RuntimeError as error:
        if "not resizable" not in str(error):
            raise
        hosts = compute(only_empty=False)
    for name, value in outs.items():
        for out, host in zip(_as_list(value), _as_list(hosts[name]), strict=True):
            write_back_output(out, host)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def resizable_copy_like(out: torch.Tensor) -> torch.Tensor:
    """A host tensor with the shape and strides of `out` whose memory can grow."""
    return torch.empty_strided(out.shape, out.stride(), dtype=out.dtype)


def write_back_output(out: torch.Tensor, host: torch.Tensor) -> None:
    """Let `out` be what a kernel made of its host tensor: an alias or a copy that can grow.

    As on CUDA an output keeps its storage and its place in it, if there is room.
    """
    storage, offset = out.untyped_storage(), out.storage_offset()
    # An alias begins at the output's first element, or at the storage that it shares with others,
    # even where the kernel left it no elements.
    start = host.untyped_storage().data_ptr()
    is_stand_in = start not in (out.data_ptr(), storage.data_ptr())
    if out.shape != host.shape or out.stride() != host.stride():
        if is_stand_in and storage.nbytes() == 0 and offset == 0:
            storage = adopt(host, out.get_device()).untyped_storage()
            _set_storage(HOST_KEYS, out, storage, 0, host.shape, host.stride())
            return
        before = 0 if start == storage.data_ptr() else offset * out.itemsize
        needed = int(before + host.untyped_storage().nbytes())
        if needed > storage.nbytes():
            grow(out, needed)
            storage = out.untyped_storage()
        _set_storage(HOST_KEYS, out, storage, offset, host.shape, host.stride())
    if is_stand_in and host.numel():
        _copy(HOST_KEYS, host_alias(out), host)
