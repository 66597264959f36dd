"""Triton under `as_cuda`: a driver for simulated devices, and kernels in Triton's interpreter.

Triton asks its active driver for the device, the stream and the capability to compile for. Where
Triton is imported, ours is the active one until the block ends. A kernel that was defined with
TRITON_INTERPRET=1 is a launch like any other, which runs Triton's interpreter on host aliases:
races, traces, graphs and the clock see it. Other kernels are compiled for a GPU, and raise.
"""

from __future__ import annotations

import _thread
import ast
import builtins
import copy
import functools
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from simgpu._core import world
from simgpu._core.launch import Kernel, launch
from simgpu._core.operators import without_modes
from simgpu._native.relabel import host_alias
from simgpu._util.naming import DEVICE_TYPE, visible_text
from simgpu._util.patching import Patches, Table
from simgpu.errors import DeviceMismatchError, UnsupportedError

Tensor = torch.Tensor
PATCHES = Table()


# The driver.


class _Utilities:
    """The functions of Triton's C library that programs call (backends/nvidia/driver.c)."""

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        """What a kernel may use of device `device`; clocks in kHz, 0 where not known."""
        found: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": found.shared_memory_per_block_optin,
            "max_num_regs": found.regs_per_multiprocessor,  # of a block: the same on all models
            "multiprocessor_count": found.multi_processor_count,
            "warpSize": found.warp_size,
            "sm_clock_rate": found.clock_rate,
            "mem_clock_rate": found.memory_clock_rate,
            "mem_bus_width": found.memory_bus_width,
        }


def _driver() -> Any:
    """Triton's driver for simulated devices, derived from Triton's class of drivers of GPUs."""
    base: Any = importlib.import_module("triton.backends.driver").GPUDriver
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget

    class SimulatedDriver(base):  # type: ignore[misc]
        """What `triton.runtime.driver.active` is under `as_cuda`."""

        utils = _Utilities()

        def __init__(self) -> None:
            """As Triton's, which keeps functions of torch.cuda: they may be replaced later."""
            self.get_current_device = lambda: torch.cuda.current_device()
            self.set_current_device = lambda device: torch.cuda.set_device(device)
            self.get_device_capability = lambda *args: torch.cuda.get_device_capability(*args)
            self.get_current_stream = lambda index: torch.cuda.current_stream(index).cuda_stream

        @classmethod
        def is_active(cls) -> bool:
            """Whether there are devices for it."""
            return torch.cuda.is_available()

        def get_current_target(self) -> Any:
            """The compute capability of the current device's model, such as 90, and its warps."""
            major, minor = torch.cuda.get_device_capability()
            return target("cuda", 10 * major + minor, 32)

        def get_active_torch_device(self) -> torch.device:
            """The current device."""
            return torch.device("cuda", torch.cuda.current_device())

        def get_device_interface(self) -> Any:
            """The module of devices, streams and events."""
            return torch.cuda

        def get_benchmarker(self) -> Any:
            """What `@triton.autotune` measures with."""
            return importlib.import_module("triton.testing").do_bench

        def get_empty_cache_for_benchmark(self) -> Tensor:
            """The 256 MiB that Triton writes before each run, and `clear_cache` does not."""
            return torch.empty(64 * 2**20, dtype=torch.int, device="cuda")

        def clear_cache(self, cache: Tensor) -> None:
            """Nothing: a simulated device has no cache."""

        def map_python_to_cpp_type(self, ty: str) -> str:
            """For what compiles, which no simulated device does."""
            raise UnsupportedError(_NO_COMPILER.format("a launcher"))

    return SimulatedDriver()


@PATCHES.action(
    "the active driver of Triton, from its import on",
    why="tutorials and `@triton.autotune` ask it for the device, the stream and the capability",
)
def _activate_once_imported(patches: Patches) -> None:
    def activate() -> None:
        # By its full name: the package has the object under the name of the module.
        config: Any = sys.modules["triton.runtime.driver"].driver
        before = dict(vars(config))
        config.set_active(_driver())
        patches.then(lambda: vars(config).update(before))

    patches.once_imported("triton.runtime.driver", activate)


@PATCHES.around(
    "triton.runtime.driver._create_driver",
    optional=True,
    late=True,
    why="it looks for CUDA's libraries where torch.cuda is there, and ends in an assertion",
)
def _create_driver(stock: Callable[[], Any]) -> Any:
    return _driver()


_NO_COMPILER = (
    "{} in Triton is compiled for a GPU, and simulated devices run no code of GPUs: set "
    "TRITON_INTERPRET=1 in the environment, before triton is imported, and Triton's interpreter "
    "runs it; or call the same in PyTorch's functions"
)


@PATCHES.around(
    "triton.runtime.jit.JITFunction.run",
    optional=True,
    late=True,
    why="a compiled kernel would need a GPU: the error names the interpreter's variable",
)
def _refuse(stock: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    kernel = f"the kernel {self.fn.__name__}"
    if getattr(self, "is_gluon", bool)():
        raise UnsupportedError(
            f"{kernel} in Gluon is compiled for a GPU, and Triton's interpreter runs no Gluon: "
            "write it in Triton, or call the same in PyTorch's functions"
        )
    raise UnsupportedError(_NO_COMPILER.format(kernel))


class _NotCompiled:
    """What `kernel.warmup(...)` returns for a kernel of the interpreter, which compiles nothing."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(
            f"{self._kernel}.warmup(...).{name} is of compiled code, and Triton's interpreter "
            "compiles nothing: choose the grid without it where TRITON_INTERPRET is set"
        )


@PATCHES.around(
    "triton.runtime.interpreter.InterpretedFunction.run",
    optional=True,
    late=True,
    why="torch.compile would trace it, and what `warmup` returns is None: programs ask that for "
    "registers and shared memory",
)
def _run(stock: Callable[..., Any], self: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
    # Where torch.compile traces the program, it is not to trace the interpreter.
    untraced = getattr(sys.modules.get("torch._dynamo"), "disable", lambda function: function)
    result = untraced(stock)(self, *args, warmup=warmup, **kwargs)
    return _NotCompiled(self.fn.__name__) if warmup else result


@PATCHES.replace(
    "triton.testing.do_bench",
    "triton.testing.do_bench_cudagraph",
    optional=True,
    late=True,
    why="by a clock each run takes as long; the interpreter would take hours for all that it asks",
)
def _bench(
    fn: Callable[[], object],
    warmup: float = 0,
    rep: float = 0,
    grad_to_none: Iterable[Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> float | list[float]:
    """The milliseconds of one run, in the form in which Triton returns those of many."""
    for tensor in grad_to_none or ():
        tensor.grad = None
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    fn()
    end.record()
    end.synchronize()
    took = begin.elapsed_time(end)
    if quantiles is not None and len(quantiles) > 1:
        return [took] * len(quantiles)
    return [took] if quantiles is None and return_mode == "all" else took


# Launches.

_interpreter: Any = _thread.RLock()  # which is not thread-safe; of C: no schedule has a part in it


@functools.cache
def _operator() -> Any:
    """The operator that instruments see: tensors that a kernel writes to, and others that it reads.

    It is never called but on meta tensors.
    """
    library = torch.library.Library("simgpu", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("triton_kernel(Tensor(a!)[] written, Tensor[] read) -> ()")  # type: ignore[no-untyped-call]
    library.impl("triton_kernel", lambda written, read: None, "Meta")  # type: ignore[no-untyped-call]
    _operator.library = library  # type: ignore[attr-defined]
    return torch.ops.simgpu.triton_kernel.default


def _tensor(leaf: Any) -> Tensor | None:
    """The tensor of an argument: itself, or that of a descriptor or of another dtype's view."""
    found = leaf if isinstance(leaf, Tensor) else getattr(leaf, "base", None)
    return found if isinstance(found, Tensor) else None


def _with_tensor(leaf: Any, tensor: Tensor) -> Any:
    if isinstance(leaf, Tensor):
        return tensor
    made = copy.copy(leaf)
    made.base = tensor
    return made


def _check_devices(kernel: str, tensors: Iterable[tuple[str, Tensor]]) -> int:
    """The device of a launch, which is the current one; raises where an argument is elsewhere."""
    current = world.current_device()
    for name, tensor in tensors:
        if tensor.is_cpu and not tensor.is_pinned():
            raise ValueError(  # in Triton's words
                f"Pointer argument {name} of {kernel} cannot be accessed from Triton (cpu "
                f"tensor?): move it by .to('{visible_text(f'{DEVICE_TYPE}:{current}')}')"
            )
        if not tensor.is_cpu and tensor.get_device() != current:
            raise DeviceMismatchError(
                f"Expected all tensors to be on the same device: Triton launches {kernel} on the "
                f"current device, {DEVICE_TYPE}:{current}, but {name} is on "
                f"{DEVICE_TYPE}:{tensor.get_device()}. Move it, or launch within "
                f"`with torch.cuda.device({tensor.get_device()}):`"
            )
    return current


@PATCHES.around(
    "triton.runtime.interpreter.GridExecutor.__call__",
    optional=True,
    late=True,
    why="a kernel in the interpreter is a launch on a stream, and works on the device's memory",
)
def _launch(stock: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    paths, spec = pytree.tree_flatten_with_path((args, kwargs))
    leaves = [leaf for _, leaf in paths]
    if not any(tensor is not None and not tensor.is_cpu for tensor in map(_tensor, leaves)):
        stock(self, *args, **kwargs)  # of the host, which only the interpreter takes
        return
    names = [
        self.arg_names[key.idx] if isinstance(key, pytree.SequenceKey) else getattr(key, "key", "")
        for (_, key, *_), _ in paths
    ]
    found = [
        (at, tensor) for at, leaf in enumerate(leaves) if (tensor := _tensor(leaf)) is not None
    ]
    name = self.fn.__name__
    index = _check_devices(name, ((names[at], tensor) for at, tensor in found))
    changed = written_parameters(self.fn)
    writes = [at for at, _ in found if changed is None or names[at] in changed]
    reads = [at for at, _ in found if at not in writes]

    def run(keys: Any, written: Sequence[Tensor], read: Sequence[Tensor]) -> None:
        own = list(leaves)
        for at, tensor in zip((*writes, *reads), (*written, *read), strict=True):
            own[at] = _with_tensor(leaves[at], tensor)
        args, kwargs = pytree.tree_unflatten(own, spec)
        with _interpreter, without_modes(), torch.no_grad():
            # What it computes is in the device's memory: there is nothing to copy back.
            self._restore_args_dev = lambda *_: None
            stock(self, *args, **kwargs)

    kernel = Kernel(_operator(), run)
    kernel.name = f"triton.{name}"
    aliases = {at: host_alias(tensor.detach()) for at, tensor in found}
    launch(kernel, index, ([aliases[at] for at in writes], [aliases[at] for at in reads]), {})


# What compiled code has, and Triton's interpreter lacks.


def _value(numbers: Any, dtype: Any, kind: Any) -> Any:
    """A value of a kernel in the interpreter, of a NumPy array."""
    interpreter: Any = sys.modules["triton.runtime.interpreter"]
    return interpreter.tl.tensor(interpreter.TensorHandle(numbers, dtype), kind)


@PATCHES.around(
    "triton.runtime.interpreter._implicit_cvt",
    optional=True,
    late=True,
    why="a float that is given to a kernel has the methods of a float32 there, as in compiled code",
)
def _with_floats(stock: Callable[..., Any], arg: Any) -> Any:
    if type(arg) is not float:
        return stock(arg)
    float32 = importlib.import_module("triton.language").float32
    return _value(torch.tensor([arg], dtype=torch.float32, device="cpu").numpy(), float32, float32)


@PATCHES.around(
    "triton.runtime.interpreter.FunctionRewriter._transform_ast",
    optional=True,
    late=True,
    why="the variable of a loop over `range` has the methods of an int32, as in compiled code",
)
def _with_loop_variables(stock: Callable[..., ast.AST], self: Any, source: str) -> ast.AST:
    tree = stock(self, source)
    for loop in [node for node in ast.walk(tree) if isinstance(node, ast.For)]:
        over_range = isinstance(loop.iter, ast.Call) and _last_name(loop.iter.func) == "range"
        if over_range and isinstance(loop.target, ast.Name):
            name = loop.target.id
            (made,) = ast.parse(f"{name} = interpreter_semantic.to_tensor({name}, False)").body
            for node in ast.walk(made):
                ast.copy_location(node, loop)
            loop.body.insert(0, made)
    return tree


@PATCHES.wrap(
    "triton.language.extra.libdevice.*",
    late=True,
    why="a function of CUDA's libdevice is that of torch with its name: the interpreter has none",
)
def _on_host(stub: Any) -> Any:
    compute = getattr(torch, getattr(stub, "__name__", ""), None)
    if compute is None or not inspect.isfunction(stub):
        return stub

    @functools.wraps(stub)
    def call(*args: Any) -> Any:
        given = [getattr(getattr(arg, "handle", None), "data", arg) for arg in args]
        computed = compute(*map(torch.as_tensor, given)).numpy()
        return _value(computed.astype(given[0].dtype), args[0].handle.dtype, args[0].type)

    return call


# Which parameters a kernel writes to, by its source.
#
# What is computed from a pointer may point to the same memory, unless it was loaded from there. A
# function that is not found may write to whatever it is given.

_Pointers = dict[str, set[str]]  # the parameters that each name of a kernel may point into


@functools.cache
def written_parameters(kernel: Callable[..., Any]) -> frozenset[str] | None:
    """The parameters that `kernel` may write to; None where its source is not to be had."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kernel)))
    except (OSError, SyntaxError, TypeError):
        return None
    pointers = {name: {name} for name in inspect.signature(kernel).parameters}
    size = -1
    while size != (size := sum(map(len, pointers.values()))):
        for node in ast.walk(tree):
            _assign(node, pointers)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return frozenset().union(*(_written(call, pointers, kernel.__globals__) for call in calls))


def _assign(node: ast.AST, pointers: _Pointers) -> None:
    """Note what the names that a statement assigns to may point into."""
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        targets: list[Any] = [node.target]
    elif isinstance(node, ast.Assign):
        targets = node.targets
    else:
        return
    found = _sources(node.value, pointers)
    for target in targets:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                pointers.setdefault(name.id, set()).update(found)


def _sources(node: ast.AST | None, pointers: _Pointers) -> set[str]:
    """The parameters that an expression may point into."""
    if isinstance(node, ast.Name):
        return pointers.get(node.id, set())
    if node is None or (isinstance(node, ast.Call) and _last_name(node.func) == "load"):
        return set()
    return set().union(*(_sources(child, pointers) for child in ast.iter_child_nodes(node)))


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _written(call: ast.Call, pointers: _Pointers, known: Mapping[str, Any]) -> set[str]:
    """The parameters that a call may write to."""
    name = _last_name(call.func)
    given = [*enumerate(call.args), *((keyword.arg, keyword.value) for keyword in call.keywords)]
    # A function of a pointer, or a method of a descriptor.
    if name.startswith(("store", "atomic_", "scatter")):
        to = [value for key, value in given if key in (0, "pointer", "desc")]
    elif isinstance(call.func, ast.Attribute) or hasattr(builtins, name):
        return set()  # of triton.language, or of a value
    else:
        function: Any = getattr(known.get(name), "fn", None)
        changed = None if function is None else written_parameters(function)
        order = [] if changed is None else list(inspect.signature(function).parameters)
        to = [
            value
            for key, value in given
            if changed is None or (order[key] if isinstance(key, int) else key) in changed
        ]
    return set().union(*(_sources(value, pointers) for value in (call.func, *to)))
