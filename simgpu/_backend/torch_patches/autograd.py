"""`backward()` on simulated devices: it runs in the calling thread, where hooks raise their errors.

A device guard written in Python reports one device only, so PyTorch's engine has a worker thread
for simgpu:0 and none for simgpu:1 and up. It needs none while autograd's multithreading is off,
which it is here in the calling thread for the length of every backward pass. Each node still runs
on the device and the stream of its forward (`simgpu._native.guard_code`).

Where the guard's type is a Python property (`simgpu._native.guard_code` says where not), C++
also asks for it while the engine unwinds from an error that a hook raised. That error is then still
pending in the interpreter, so calling any Python function fails, in a place where C++ cannot
handle a failure and ends the process. `guard.device_type` stores a pending error first, and
`_in_this_thread` raises it afterwards.

A backward pass that failed leaves the work that it had not done in the calling thread's queue, and
with it the graph and its tensors: on CUDA that queue belongs to a thread of PyTorch's, which goes
on with it. Here the next backward pass of the thread would drop it, so one follows at once, of a
single number (`_drop_unfinished_work`).

Where CUDA is there too, a pass that is about GPUs only is left to PyTorch, with its threads. One
that is about both runs in the calling thread, with CUDA for its accelerator: what is simulated then
runs on the current stream of its device, and not on that of its forward.
"""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.utils._python_dispatch import _disable_current_modes

from simgpu._backend.guard import deferred_errors
from simgpu._core import streams, world
from simgpu._native import guard_code
from simgpu._ops import autocast
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Table
from simgpu._util.thread_rows import CUDA, NEITHER, SIMULATED

PATCHES = Table()

# `torch.autocast`: what PyTorch does for CUDA outside its kernels when a region begins or ends.
#
# The kernels that cast are in `simgpu._ops.autocast`.

_stock_clear_cache = torch.clear_autocast_cache
_stock_get_fastpath = torch.backends.mha.get_fastpath_enabled


@PATCHES.replace(
    "torch.clear_autocast_cache",
    why="casts that the device's kernels keep are dropped when the outermost region ends",
)
def _clear_autocast_cache() -> None:
    """`torch.clear_autocast_cache`, which every outermost region calls when it is left."""
    autocast.clear_cache()
    _stock_clear_cache()


@PATCHES.replace(
    "torch.backends.mha.get_fastpath_enabled",
    why="attention's fast path goes past the operators that autocast casts; CUDA's is off too",
)
def _get_fastpath_enabled() -> bool:
    """`torch.backends.mha.get_fastpath_enabled`: off while autocast is on, as for CUDA.

    Attention and encoder layers in eval mode ask PyTorch only whether CUDA's autocast is on, and
    would go past the operators that are cast. Scripted code gets PyTorch's answer for it; the
    branch has a form that the compiler of TorchScript leaves out.
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return _stock_get_fastpath() and not torch.is_autocast_enabled(DEVICE_TYPE)
    return True


class _PerThread(threading.local):
    """What each thread has of its own: how many backward passes it is within."""

    depth: int = 0


_per_thread = _PerThread()


def _by_its_kind(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what may pass backward, with the accelerator that its tensors are on."""
    if not world.may_be_cuda():
        return _in_this_thread(run, *args, **kwargs)
    kinds = _kinds(args)
    if not kinds:
        return _in_this_thread(run, *args, **kwargs)
    with world.taken(CUDA if CUDA in kinds else SIMULATED):
        if SIMULATED in kinds:
            return _in_this_thread(run, *args, **kwargs)
        return run(*args, **kwargs)


def _kinds(args: Sequence[Any]) -> set[int]:
    """Which accelerators the graph is about whose roots are in `args`, or in a tuple in front.

    While there are no simulated devices nothing is computed on them, and the roots decide.
    """
    kinds: set[int] = set()
    todo: list[Any] = []
    with torch._C.DisableTorchFunction():
        for root in (*(args[0] if args and isinstance(args[0], tuple) else ()), *args):
            if isinstance(root, torch.Tensor):
                kinds.add(world.kind_of(root.device))
                todo.append(root.grad_fn)
            elif isinstance(root, GradientEdge):
                todo.append(root.node)
    if world.active_devices and not world.gpus_have_tensors():
        return {SIMULATED}
    seen = {None}
    while todo and world.active_devices and not kinds >= {SIMULATED, CUDA}:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            kinds.update(world.kind_of(of.device) for of in node._input_metadata)
            todo += [following for following, _ in node.next_functions]
    return kinds - {NEITHER}


def _in_this_thread(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what may pass backward; changes nothing while there are no simulated devices."""
    if not world.active_devices:
        return run(*args, **kwargs)
    _let_engine_know_devices()
    multithreading = torch._C._is_multithreading_enabled()
    _per_thread.depth += 1
    try:
        # In here: a signal handler that raises does so after this call, at the earliest.
        torch._C._set_multithreading_enabled(False)
        with streams.logging_engine_waits():
            return run(*args, **kwargs)
    except SystemError:  # "returned NULL without setting an exception": we have it
        if not deferred_errors.errors:
            raise
        error = deferred_errors.errors[0]
        _drop_unfinished_work()
    except BaseException:
        _drop_unfinished_work()
        raise
    finally:
        _per_thread.depth -= 1
        torch._C._set_multithreading_enabled(multithreading)
        deferred_errors.errors.clear()
    try:
        raise error
    finally:
        del error  # its traceback holds this frame


def _drop_unfinished_work() -> None:
    """Empty this thread's queue of autograd, which holds what a failed pass had not done.

    Within another backward pass (checkpointing) the queue is that pass's, which is about to fail.
    """
    if _per_thread.depth <= 1:
        with _disable_current_modes():
            _pass_backward()


def _pass_backward() -> None:
    """Make the engine pass backward from a single number of the CPU."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch._C._DisableFuncTorch(),
        torch._C.DisableTorchFunction(),
    ):
        number = torch.zeros((), device="cpu", requires_grad=True)
        # Not `torch.autograd.backward`, which refuses within a transform of torch.func.
        torch.autograd.Variable._execution_engine.run_backward(
            *((number.neg(),), (torch.ones((), device="cpu"),), False, False, ()),
            allow_unreachable=True,
            accumulate_grad=True,
        )


_pass = _by_its_kind if torch._C._has_cuda else _in_this_thread

_starting = threading.Lock()
_has_started = False


def start_engine() -> None:
    """Have the engine make its threads, one for each device that it knows by then; once."""
    global _has_started
    if _has_started or _per_thread.depth:
        return
    with _starting:
        if not _has_started:
            _pass_backward_elsewhere()
            _has_started = True


def _pass_backward_elsewhere() -> None:
    """Pass backward in a thread that no transform is in, and that imports nothing.

    The caller may be within `import torch`, for whose end an import in the thread would wait.
    """
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        _per_thread.depth = 1  # the engine is asked for nothing more in there
        try:
            _pass_backward()
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()


def _let_engine_know_devices() -> None:
    """Make the engine know of all devices, but not before it has made its threads.

    It keeps a stream for each device that it knows at the beginning of a pass.
    """
    start_engine()
    if _has_started:
        guard_code.set_device_count(len(world.active_devices))


@PATCHES.wrap(
    "torch.autograd.variable.Variable._execution_engine",
    why="backward() and grad() run in the calling thread: PyTorch's engine has a worker thread for "
    "simgpu:0 only",
)
class _Engine:
    """A proxy of PyTorch's engine, whose backward passes run in the calling thread."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        return _pass(self._engine.run_backward, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@PATCHES.around(
    "torch._C.ScriptFunction.__call__",
    "torch._C.ScriptMethod.__call__",
    why="TorchScript runs its backward pass in C++, past the engine's Python entry",
)
def _call_scripted(stock: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """`__call__` of TorchScript code, which may contain a backward pass, started by C++."""
    return _pass(functools.partial(stock, self), *args, **kwargs)
