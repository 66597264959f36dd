"""Run the CPU kernel of every operator and copy, and call instruments before and after.

All device work passes `launch`, so that instruments (`hooks`) can watch, delay or refuse it.
The `Record` that `simgpu.trace()` lists is made here. Without an instrument, `launch` only runs the
kernel. Memory of a device is written past it only by these:

- `_ops/from_schema.py` writes back what a launch has computed on copies, and reports it
  (`report_written_back`).
- `_cuda/graphs.py` takes back what a capture has computed, and CUDA would not have.
- `_memory/sharing.py` moves what is sent to another process, where CUDA sends an address.
- `_distributed/works.py` completes the results of a launched collective later.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from simgpu._core import clock, streams, world
from simgpu._core.hooks import About, Collective, Launch, Record, hooks
from simgpu._core.operators import has_no_kernel
from simgpu._core.out_of_memory import Charge, changes_more_than_results, charge, raise_as_device
from simgpu._core.streams import wait_for_sleep
from simgpu._util import thread_rows
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.thread_rows import LOG, STREAMS

# Straight to the CPU kernel of an operator, past autograd, modes and the choice of a backend.
HOST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CPU = torch.device("cpu")


class Kernel:
    """An operator together with the host code that computes it."""

    __slots__ = ("changes_more", "kind", "name", "op", "run")

    def __init__(
        self,
        op: torch._ops.OpOverload,
        run: Callable[..., Any] | None = None,
        changes_more: bool | None = None,
    ) -> None:
        self.op = op
        self.name = str(op).removeprefix("aten.").removesuffix(".default")
        # Of its launches that are no copies.
        self.kind = "memory" if has_no_kernel(op) else "kernel"
        # Straight to the CPU kernel: modes and functions that users installed do not see it.
        self.run: Callable[..., Any] = run or op._handle.redispatch_boxed
        # Whether the memory of its results has to be there before it runs.
        self.changes_more = changes_more_than_results(op) if changes_more is None else changes_more


def _hint(arguments: object) -> str:
    """What to do with a tensor that has outlived its device; nothing where no tensor was given."""
    if not any(isinstance(value, torch.Tensor) for value in tree_leaves(arguments)):
        return ""
    return "; a tensor that has outlived its devices can only be copied to the host: say .cpu()"


def launch(
    kernel: Kernel,
    index: int,
    args: Iterable[Any],
    kwargs: dict[str, Any],
    route: tuple[int | None, int | None] | None = None,
    about: About = None,
) -> Any:
    """Run `kernel` for device `index` on host arguments and return its host results.

    A copy has a `route`: see `launch_copy`. `about` is what instruments see of this launch besides
    (`Launch.about`). After one of ON_COPIES, `report_written_back` is to be called once the tensors
    themselves have the results.
    """
    if index >= len(world.active_devices) and route is None:
        world.device(index, _hint((*args, kwargs)))  # raises
    if kernel.changes_more:
        return _launch_charged(kernel, index, tuple(args), kwargs, route, about)
    if hooks.launches:
        return _launch_watched(kernel, index, args, kwargs, route, about)
    try:
        return kernel.run(HOST_KEYS, *args, **kwargs)
    except RuntimeError as error:
        raise_as_device(error, kernel.op, args, kwargs, index, route)
        raise


def launch_copy(
    kernel: Kernel,
    source: int | None,
    target: int | None,
    args: Iterable[Any],
    kwargs: dict[str, Any],
    blocking: bool = True,
) -> Any:
    """`launch` for a copy from device `source` to device `target`, where None is the host.

    As on CUDA, the copy is queued on the device it reads from, or on the one it writes to when it
    reads from the host. Unless it does not block, a copy to the host makes the host wait, and so
    does one from the host for a stream that sleeps.
    """
    index = target if source is None else source
    assert index is not None, "a copy from host to host is no device work"
    result = launch(kernel, index, args, kwargs, (source, target))
    if blocking and (source is None or target is None):
        wait_for_sleep(index)
    there = index < len(world.active_devices)  # what has outlived its device has no streams
    if target is None and blocking and there and hooks.host_synchronizes:
        stream = streams.current_stream(index)
        for waits in hooks.host_synchronizes:
            waits(stream)
    return result


def report_written_back(
    kernel: Kernel, index: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Report to instruments what a launch of `kernel` on copies was for, on device `index`.

    `args` and `kwargs` have aliases of the tensors themselves, which have the results now.
    """
    device = _device_or_host(index)
    stream = streams.current_stream_id(index)
    again = Launch(kernel.kind, kernel.name, device, stream, device, device, args, kwargs, kernel)
    for launched in hooks.launched:
        launched(again, None)


def other_end(launch: Launch) -> tuple[int, int] | None:
    """Of a copy between devices, the current stream of the device that it writes to.

    CUDA queues the copy on the other device, and makes both streams wait for each other, before it
    and after it. The stream is given as the index of its device and its number.
    """
    if launch.source == launch.target or "cpu" in (launch.source.type, launch.target.type):
        return None
    index: int = launch.target.index
    return index, streams.current_stream_id(index)


def is_non_blocking(launch: Launch) -> bool:
    """Whether a copy need not wait: `x.to(device, non_blocking=True)`, or `copy_` with that."""
    if launch.op == "copy_" and len(launch.args) > 2:
        return bool(launch.args[2])
    return bool(launch.kwargs.get("non_blocking", False))


def _launch_charged(
    kernel: Kernel,
    index: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    route: tuple[int | None, int | None] | None,
    about: About,
) -> Any:
    """`launch` of a kernel that changes more than its results, whose memory is taken first."""
    held = charge(kernel.op, world.device(index), args, kwargs)
    try:
        if hooks.launches:
            return _launch_watched(kernel, index, args, kwargs, route, about, held)
        result = kernel.run(HOST_KEYS, *args, **kwargs)
    except BaseException as error:
        if held is not None:
            held.release(())
        if isinstance(error, RuntimeError):
            raise_as_device(error, kernel.op, args, kwargs, index, route)
        raise
    if held is not None:
        held.release(result)
    return result


def _launch_watched(
    kernel: Kernel,
    index: int,
    args: Iterable[Any],
    kwargs: dict[str, Any],
    route: tuple[int | None, int | None] | None,
    about: About,
    held: Charge | None = None,
) -> Any:
    """`launch` with instruments before and after the kernel, for whose results memory is `held`."""
    state = thread_rows.per_thread.row
    if state[LOG]:
        streams.report_engine_waits()
    device = source = target = _device_or_host(index)
    if route is not None:
        source, target = map(_device_or_host, route)
    seen = Launch(
        kernel.kind if route is None else "copy",
        kernel.name,
        device,
        state[STREAMS + index],
        source,
        target,
        tuple(args),
        kwargs,
        kernel,
        about,
    )
    for before in hooks.before_launch:
        before(seen)
    timed = hooks.after_launch or clock.current.follows_devices
    begin = clock.current.now() if timed else 0.0
    try:
        if hooks.executor is None:
            result = compute(seen, seen.args, kwargs)
        else:
            result = hooks.executor.run(seen, compute)
    except RuntimeError as error:
        raise_as_device(error, kernel.op, args, kwargs, index, route)
        raise
    if held is not None:
        held.release(result)
    for launched in hooks.launched:
        launched(seen, result)
    if not timed:
        return result
    begin, end = clock.current.times_of(seen, result, begin)
    if hooks.after_launch:
        record = _record(seen, result, begin, end)
        for after in hooks.after_launch:
            after(seen, record)
    return result


def compute(about: Launch, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the kernel of a launch makes of these arguments, when instruments have seen it."""
    result = about.kernel.run(HOST_KEYS, *args, **kwargs)
    for computed in hooks.computed:
        computed(about, result)
    return result


def _record(about: Launch, result: Any, begin: float, end: float) -> Record:
    index = about.device.index
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
    return Record(
        *(about.kind, about.op, about.device, about.stream, about.source, about.target),
        nbytes=sum(part.nbytes for tensor in tensors for part in dense_parts(tensor)),
        shapes=tuple(shape for tensor in tensors for shape in _shapes(tensor)),
        thread=threading.current_thread().name,
        begin=begin,
        end=end,
        allocated=world.active_devices[index].allocated if index < len(world.active_devices) else 0,
        collective=about.about if isinstance(about.about, Collective) else None,
    )


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors whose memory a host tensor has: itself, unless it is sparse or nested."""
    if tensor.is_nested:
        return (tensor.values(),)
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()  # memory of another library (MKL-DNN)


def is_host_number(tensor: torch.Tensor) -> bool:
    """Whether an argument of a launch is a number of the host, and no alias of a device's memory.

    Both may have no dimensions, and both are CPU tensors; memory under an alias cannot be resized.
    """
    return not tensor.dim() and tensor.untyped_storage().resizable()


def _shapes(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    """The shape of a tensor; of a nested one, that of each tensor in it."""
    if tensor.is_nested:
        return [tuple(sizes) for sizes in tensor._nested_tensor_size().tolist()]
    return [tuple(tensor.shape)]


@functools.cache
def _device_or_host(index: int | None) -> torch.device:
    return _CPU if index is None else torch.device(DEVICE_TYPE, index)
