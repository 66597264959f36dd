"""Kernels for operators with a `generator` argument: `normal_`, `bernoulli`, `multinomial`.

They draw from the generator of the tensors' device (`simgpu._core.device_generator`), not from the
CPU's. Where that is CUDA's, `simgpu._random` computes what a GPU would; where devices were made
with `rng="host"`, the CPU's kernel does, from a CPU generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from simgpu._core import world
from simgpu._core.device import Device
from simgpu._core.device_generator import check_generator
from simgpu._core.hooks import hooks
from simgpu._core.launch import Kernel, launch
from simgpu._memory.ownership import adopt, check_memory
from simgpu._memory.pinned import check_not_wanted
from simgpu._native.relabel import relabel
from simgpu._ops.calls import Arguments, overload, result_picker, schema_of
from simgpu._ops.checks import few_dims
from simgpu._ops.dtypes import HALVES, Wider, name_of, no_kernel, widened
from simgpu._ops.table import PythonKernel, row
from simgpu._random.fill import Source
from simgpu._random.generator_state import Stream
from simgpu._random.samplers import NEW, SAMPLERS, by_host, random_from_of_host

_CPU = torch.device("cpu")
_EMPTY = Kernel(overload("empty.memory_format"))
_NO_OPTIONS: dict[str, Any] = {}
_ANY_INCREMENT = 4  # for operators of other libraries


# Operators that look at the caller's generator even where they draw nothing.
_CHECK_ALWAYS = ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet")


def source_of(device: Device, given: torch.Generator | None = None) -> Source | torch.Generator:
    """What kernels of a device draw from: the generator that was given, or the device's own."""
    generator = device.generator if given is None else check_generator(given)
    if isinstance(generator, Stream):
        return Source(generator, device.resident_threads)
    return generator


class Draw:
    """An operator that draws: its kernel for CUDA's generator, and for the CPU's."""

    def __init__(self, kernel: Kernel) -> None:
        sampler = SAMPLERS.get(kernel.name) or by_host(kernel.op, _ANY_INCREMENT)
        self.sampler = widened(kernel.op, sampler) or sampler
        self.new = NEW.get(kernel.name)
        past_floats = kernel.name == "random_.from"
        self._host = Kernel(kernel.op, random_from_of_host) if past_floats else kernel
        self._cuda = Kernel(kernel.op, _quietly(self.sampler))
        self._checks_always = kernel.name.split(".")[0] in _CHECK_ALWAYS

    def choose(
        self, index: int, given: torch.Generator | None, draws: bool
    ) -> tuple[Kernel, torch.Generator | Source]:
        """What to launch on device `index`, and its generator: `given`, or the device's own.

        Where nothing is drawn, few operators look at what was given.
        """
        source = source_of(world.device(index), given if draws or self._checks_always else None)
        return self._cuda if isinstance(source, Source) else self._host, source


def _drawing_new(
    _: torch._ops.OpOverload, name: str, arguments: int = 0, usual: torch.dtype | None = None
) -> PythonKernel:
    """The kernel of a new tensor that is filled by `name`: `rand`, `randn`, `randint`.

    The first `arguments` of the call go to `name`; the size follows them. Without a dtype it is
    `usual`, where None is PyTorch's default. PyTorch does the same in two calls, of which each
    would have to find its way here.
    """
    draw = Draw(Kernel(overload(name)))
    both = Kernel(overload(name), _made_and_filled)

    def run(
        *args: Any,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,  # strided: others have kernels of their own
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> torch.Tensor:
        filled_by, size = args[:arguments], args[arguments]
        if len(args) > arguments + 1:
            generator = args[arguments + 1]
        check_not_wanted(pin_memory)
        if dtype is None:
            dtype = usual or torch.get_default_dtype()
        index = None if device is None else device.index
        index = world.current_device() if index is None else index
        check_memory(index, size, dtype)
        chosen, source = draw.choose(index, generator, 0 not in size)
        if hooks.launches or hooks.before_allocate:
            # As on CUDA, memory comes first: without it nothing is drawn.
            tensor = adopt(launch(_EMPTY, index, (size,), _options(dtype)), index)
            launch(chosen, index, (relabel(tensor), *filled_by), {"generator": source})
            return tensor
        # No instrument looks and there is room: both at once.
        fill, new = chosen.run, None
        if isinstance(source, Source):
            fill = draw.sampler
            new = draw.new if dtype is torch.float32 else None
        made = launch(both, index, (size, dtype, new, fill, filled_by, source), _NO_OPTIONS)
        return adopt(made, index)

    return run


def _options(dtype: torch.dtype) -> dict[str, Any]:
    """Of a new tensor on the host."""
    return {"dtype": dtype, "device": _CPU}


def _made_and_filled(
    keys: torch._C.DispatchKeySet,
    size: Sequence[int],
    dtype: torch.dtype,
    new: Callable[..., torch.Tensor | None] | None,
    fill: Callable[..., Any],
    filled_by: Sequence[Any],
    source: Any,
) -> torch.Tensor:
    """A new tensor on the host, with numbers in it: by `new` if that can make it."""
    with torch._C.DisableTorchFunction():
        tensor = None if new is None else new(keys, size, source)
        if tensor is None:
            tensor = _EMPTY.run(keys, size, **_options(dtype))
            fill(keys, tensor, *filled_by, generator=source)
    return tensor


def _quietly(fill: Callable[..., Any]) -> Callable[..., Any]:
    """Host code past torch-function modes of the user, which must not see how it computes."""

    def run(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return fill(keys, *args, **kwargs)

    return run


def drawing_in_place(kernel: Kernel, reader: Arguments, position: int) -> PythonKernel:
    """Operators that fill their first argument, the only tensor: `uniform_`, `normal_`."""
    draw, alias = Draw(kernel), reader.alias

    def run(
        tensor: torch.Tensor, *args: Any, generator: torch.Generator | None = None, **kwargs: Any
    ) -> Any:
        if len(args) >= position:
            args, generator = args[: position - 1], args[position - 1]
        index = tensor.get_device()
        draws = generator is None or tensor.numel() > 0
        chosen, kwargs["generator"] = draw.choose(index, generator, draws)
        launch(chosen, index, (alias(tensor), *args), kwargs)
        return tensor

    return run


def draw_something(args: Sequence[Any]) -> bool:
    """Whether a call draws a number: for a tensor, a size, or as many as its first argument."""
    for value in args:
        if isinstance(value, torch.Tensor):
            return value.numel() > 0
        if isinstance(value, (list, tuple)):
            return 0 not in value
    return not args or args[0] != 0


def random_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Operators that draw: from the device's own generator unless the caller gives one."""
    schema = schema_of(kernel.op)
    position = schema.names.index("generator")
    if schema.written == schema.tensors == [0]:
        return drawing_in_place(kernel, reader, position)
    pick = result_picker(kernel.op)
    draw = Draw(kernel)

    def run(*args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Any:
        if len(args) > position:
            args, generator = args[:position], args[position]
        index, host_args, host_kwargs = reader.read(args, kwargs)
        draws = generator is None or draw_something(args)
        chosen, source = draw.choose(index, generator, draws)
        host_kwargs["generator"] = source
        return pick(launch(chosen, index, host_args, host_kwargs), args, kwargs, index)

    return run


# Rows and checks


def _chances(self: torch.Tensor, p: torch.Tensor, **_: Any) -> None:
    if not p.is_floating_point() and self.numel():
        raise RuntimeError(
            f"expected probabilities tensor to have floating type, got {name_of(p.dtype)}"
        )


def _randperm(
    n: int, dtype: torch.dtype | None = None, out: torch.Tensor | None = None, **_: Any
) -> None:
    dtype = dtype if out is None else out.dtype
    if dtype is torch.bfloat16 and n:
        raise no_kernel("randperm_out_cuda", dtype)


def sobol(arguments: dict[str, Any]) -> None:
    """One row for each dimension of the sequence in everything that it is drawn from."""
    dimension = arguments["dimension"]
    for name in ("self", "quasi", "sobolstate", "ltm"):
        given = arguments.get(name)
        if isinstance(given, torch.Tensor) and given.shape[:1] != (dimension,):
            raise RuntimeError(
                f"a Sobol sequence of {dimension} dimensions: expected {name} of as many rows, got "
                f"shape {tuple(given.shape)}"
            )


row("rand[.generator]", make=partial(_drawing_new, name="uniform_"))
row(
    "randint.low[_generator]",
    make=partial(_drawing_new, name="random_.from", arguments=2, usual=torch.int64),
)
row("randn[.generator]", make=partial(_drawing_new, name="normal_"))
row("randperm", dtypes=_randperm)
row("bernoulli[_].Tensor[_out]", dtypes=_chances)
# Where chances are a tensor, not one number.
row(
    "bernoulli_",
    checks=(partial(few_dims, only=lambda call: isinstance(call.get("p"), torch.Tensor)),),
)
row("binomial", no_cpu_numbers={"count": "", "prob": ""})
row("poisson", "_standard_gamma", checks=(few_dims,))
row("_sample_dirichlet", "_standard_gamma", "_standard_gamma_grad", wider=Wider(HALVES))
row(
    *("bernoulli_", "exponential_", "geometric_", "log_normal_", "normal_", "randn", "random_"),
    "rrelu_with_noise[_]",
    none_if_empty=True,
)
row(
    *("_sobol_engine_draw", "_sobol_engine_ff_"),
    *("_sobol_engine_initialize_state_", "_sobol_engine_scramble_"),
    checks=(sobol,),
)
