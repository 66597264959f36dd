"""Kernels for operators with `out=` arguments, as in `torch.add(x, y, out=z)`.

An output that does not fit gets another shape and more memory. Memory under a host alias cannot
grow, so such an output is computed in a fresh host tensor and written back. Instruments are told of
the device's own tensors then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.overloads import PythonKernel
from simgpu._kernels.random import Draw
from simgpu._kernels.schema import Schema
from simgpu._memory.ownership import adopt
from simgpu._memory.resizing import grow
from simgpu._native.dlpack_relabel import host_alias
from simgpu._runtime import executors, streams
from simgpu._runtime.error_words import wants_to_resize
from simgpu._runtime.host_operators import copy_, set_storage
from simgpu._runtime.instruments import hooks
from simgpu._runtime.launch import HOST_KEYS, Kernel, launch, tell_written_back
from simgpu.errors import UnsupportedError


def out_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Results are written into the given tensors, which may have to grow."""
    schema = Schema(kernel.op)
    draw = Draw(kernel) if "generator" in schema.names else None

    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        chosen = kernel
        if draw is not None:
            chosen, source = draw.choose(index, host_kwargs.get("generator"))
            host_kwargs["generator"] = source
        outs = {name: kwargs[name] for name in schema.outputs}
        # An output without elements is computed elsewhere, and so has to be if it is read, too.
        copied = empty = _are_some_empty(outs)
        copies = reader.read_copies(args, kwargs) if empty else None
        try:
            if copies is None:
                hosts = _launched(chosen, index, host_args, host_kwargs, outs, empty)
        except RuntimeError as error:
            if not wants_to_resize(error):
                raise
            copied = True
            copies = reader.read_copies(args, kwargs)
            if copies is None:
                hosts = _launched(chosen, index, host_args, host_kwargs, outs, copied, grow=True)
        if copies is not None:
            host_args, copied_kwargs = copies
            hosts = {name: copied_kwargs[name] for name in outs}
            launch(chosen.with_copies(), index, host_args, {**host_kwargs, **hosts})
        for name, value in outs.items():
            for out, host in zip(_as_list(value), _as_list(hosts[name]), strict=True):
                write_back_output(out, host)
        if copied:
            tell_of_tensors(chosen, index, reader, args, kwargs)
        results = tuple(outs.values())
        return results[0] if len(results) == 1 else results

    return run


def launch_into(
    out: torch.Tensor, kernel: Kernel, index: int, host_args: Iterable[Any], kwargs: dict[str, Any]
) -> bool:
    """Launch an `out=` kernel whose only output is `out`; False if that is too small for results.

    Nothing has been computed then, and the host aliases must not be used any more: they have the
    shape of the results.
    """
    if not out.numel():
        return False
    try:
        launch(kernel, index, host_args, kwargs)
    except RuntimeError as error:
        if not wants_to_resize(error):
            raise
        return False
    host = kwargs["out"]
    if out.shape != host.shape or out.stride() != host.stride():
        write_back_output(out, host)
    return True


def _launched(
    kernel: Kernel,
    index: int,
    host_args: list[Any],
    host_kwargs: dict[str, Any],
    outs: dict[str, Any],
    copied: bool,
    grow: bool = False,
) -> dict[str, Any]:
    """Run an `out=` kernel, and return the host tensors that it has written to, by name.

    It writes to host aliases. A host tensor of the same shape and strides, whose memory can grow,
    takes the place of an output without elements, and of all outputs with `grow`; `copied` says
    whether there is such an output.
    """
    hosts = {}
    for name, value in outs.items():
        pairs = zip(_as_list(value), _as_list(host_kwargs[name]), strict=True)
        chosen = [
            alias if out.numel() and not grow else resizable_copy_like(out) for out, alias in pairs
        ]
        hosts[name] = chosen if isinstance(value, (list, tuple)) else chosen[0]
    launch(kernel.with_copies() if copied else kernel, index, host_args, {**host_kwargs, **hosts})
    return hosts


def _are_some_empty(outs: dict[str, Any]) -> bool:
    return any(not out.numel() for value in outs.values() for out in _as_list(value))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def resizable_copy_like(out: torch.Tensor) -> torch.Tensor:
    """A host tensor with the shape and strides of `out` whose memory can grow."""
    return torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device="cpu")


def tell_of_tensors(
    kernel: Kernel, index: int, reader: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Tell instruments of a call that was computed on copies, and is in its tensors now."""
    if hooks.written_back:
        _, host_args, host_kwargs = reader.read(args, kwargs)
        tell_written_back(kernel, index, host_args, host_kwargs)


def write_back_output(out: torch.Tensor, host: torch.Tensor) -> None:
    """Give `out` the shape, strides and values of `host`, which a kernel has written to.

    `host` is an alias of `out`, or a copy of it or of all its storage, whose memory could grow. As
    on CUDA the output keeps its storage and its offset in it, if there is room.
    """
    storage, offset = out.untyped_storage(), out.storage_offset()
    # An alias begins at the output's first element, or at the storage that it shares with others,
    # even where the kernel left it no elements.
    start = host.untyped_storage().data_ptr()
    is_copy = start not in (out.data_ptr(), storage.data_ptr())
    if out.shape != host.shape or out.stride() != host.stride():
        if is_copy and storage.nbytes() == 0 and offset == 0:
            storage = adopt(host, out.get_device()).untyped_storage()
            set_storage(HOST_KEYS, out, storage, 0, host.shape, host.stride())
            return
        before = (offset - host.storage_offset()) * out.itemsize
        needed = int(before + host.untyped_storage().nbytes())
        if needed > storage.nbytes():
            grow(out, needed)
            storage = out.untyped_storage()
        set_storage(HOST_KEYS, out, storage, offset, host.shape, host.stride())
    if is_copy:
        if streams.captured and streams.current_stream(out.get_device()).is_capturing():
            raise UnsupportedError(
                f"an out= that has to grow to shape {tuple(host.shape)} cannot be captured on a "
                "simulated device: give it that shape before the capture"
            )
        executors.finish()
        copy_(HOST_KEYS, host_alias(out), host)
