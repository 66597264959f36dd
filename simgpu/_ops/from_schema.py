"""`device_kernel(op)`: makes the kernel of an operator from its schema, if none is written by hand.

Every such kernel does the same: it takes host aliases of the tensors, has PyTorch's CPU kernel
compute, and hands the results to the device. What differs is read from the operator's schema, and
each part below makes the kernels of one kind of operator:

outputs       `out=` arguments: `torch.add(x, y, out=z)`
random        a `generator` argument: `normal_`, `bernoulli`
factories     a `device` argument: `empty`, `zeros_like`
foreach       lists of tensors: `_foreach_add_`
elementwise   one to three tensors: `exp`, `add`, `add_`, `addmm`, the fast paths
general       all the rest: `convolution`, `native_layer_norm`, `scatter_`
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd.graph import increment_version

from simgpu._core import hooks as core_hooks
from simgpu._core import streams, world
from simgpu._core.device import Device
from simgpu._core.device_generator import check_generator
from simgpu._core.hooks import ON_COPIES, About, hooks
from simgpu._core.launch import HOST_KEYS, Kernel, launch, report_written_back
from simgpu._core.operators import copy_, set_storage, tensors_in, wants_to_resize
from simgpu._core.out_of_memory import charge
from simgpu._memory import pinned
from simgpu._memory.ownership import MANY, adopt, adopt_all, check_memory, on_one_storage
from simgpu._memory.storages import grow
from simgpu._native.relabel import host_alias
from simgpu._ops.calls import NUMBERS, Arguments, Schema, kept_number, result_picker, schema_of
from simgpu._ops.dtypes import host_code, widened
from simgpu._ops.table import Keys, PythonKernel, facts_of
from simgpu._random.fill import Source
from simgpu._random.generator_state import Stream
from simgpu._random.samplers import NEW, SAMPLERS, by_host, random_from_of_host
from simgpu.errors import DeviceMismatchError, UnsupportedError

# Kernels for operators with `out=` arguments, as in `torch.add(x, y, out=z)`.
#
# An output that does not fit gets another shape and more memory. Memory under a host alias cannot
# grow, so such an output is computed in a fresh host tensor and written back. Instruments hear
# of the device's own tensors then.


def out_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Results are written into the given tensors, which may have to grow."""
    schema = schema_of(kernel.op)
    draw = Draw(kernel) if "generator" in schema.names else None

    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        chosen = kernel
        if draw is not None:
            generator = host_kwargs.get("generator")
            draws = generator is None or draw_something(args)
            chosen, source = draw.choose(index, generator, draws)
            host_kwargs["generator"] = source
        outs = {name: kwargs[name] for name in schema.outputs}
        # An output without elements is computed elsewhere, and so has to be if it is read, too.
        copied, grows = any(not out.numel() for out in tensors_in(*outs.values())), False
        while True:
            copies = reader.read_copies(args, kwargs) if copied else None
            try:
                if copies is None:
                    hosts = _launched(chosen, index, host_args, host_kwargs, outs, copied, grows)
                else:
                    hosts = {name: copies[1][name] for name in outs}
                    launch(chosen, index, copies[0], {**host_kwargs, **hosts}, about=ON_COPIES)
                break
            except RuntimeError as error:
                if grows or not wants_to_resize(error):
                    raise
                copied = grows = True
        for name, value in outs.items():
            for out, host in zip(_as_list(value), _as_list(hosts[name]), strict=True):
                write_back_output(out, host)
        if copied:
            report_copied(chosen, index, reader, args, kwargs)
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
    grows: bool,
) -> dict[str, Any]:
    """Run an `out=` kernel, and return the host tensors that it has written to, by name.

    It writes to host aliases. A host tensor of the same shape and strides, whose memory can grow,
    takes the place of an output without elements, and of all outputs with `grows`; `copied` says
    whether there is such an output.
    """
    hosts = {}
    for name, value in outs.items():
        pairs = zip(_as_list(value), _as_list(host_kwargs[name]), strict=True)
        chosen = [
            alias
            if out.numel() and not grows
            else torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device="cpu")
            for out, alias in pairs
        ]
        hosts[name] = chosen if isinstance(value, (list, tuple)) else chosen[0]
    about: About = ON_COPIES if copied else None
    launch(kernel, index, host_args, {**host_kwargs, **hosts}, about=about)
    return hosts


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def report_copied(
    kernel: Kernel, index: int, reader: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Report to instruments a call that was computed on copies, and is in its tensors now."""
    if hooks.launched:
        _, host_args, host_kwargs = reader.read(args, kwargs)
        report_written_back(kernel, index, host_args, host_kwargs)


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
        core_hooks.finish_queued_work()
        copy_(HOST_KEYS, host_alias(out), host)


# Kernels of operators of one to three tensors: `exp`, `x + 1`, `mul_`, `addmm`, `mul(out=z)`.
#
# Nearly every step of a program is one of these, so their kernels do no more than they must: take
# the host aliases, launch, adopt the result. Whatever is not plain (tensors of two devices, tensors
# that share memory) goes through `Arguments.read`, as in the kernels of all other operators.

Tensor = torch.Tensor


def unary_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """One tensor in, a new one out: `exp`, `sum`, `softmax`."""
    alias = reader.alias

    def run(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        index = self.get_device()
        return adopt(launch(kernel, index, (alias(self), *args), kwargs), index)

    return run


def binary_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Two tensors in, a new one out: `add`, `mm`; a number may replace the second."""
    with_number = _number_kernel(kernel)
    alias = reader.alias

    def run(self: Tensor | complex, other: Tensor | complex, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(other, Tensor) and isinstance(self, Tensor):
            index = self.get_device()
            if other.get_device() == index:
                host = (alias(self), alias(other), *args)
                return adopt(launch(kernel, index, host, kwargs), index)
        elif with_number is not None and isinstance(self, Tensor):
            index = self.get_device()
            host = (alias(self), other, *args)
            return adopt(launch(with_number, index, host, kwargs), index)
        index, host_args, host_kwargs = reader.read((self, other, *args), kwargs)
        return adopt(launch(kernel, index, host_args, host_kwargs), index)

    return run


def ternary_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Three tensors in, a new one out: `addmm`, which a linear layer is, `where`, `lerp`."""
    alias = reader.alias

    def run(self: Tensor, second: Tensor, third: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(self, Tensor) and isinstance(second, Tensor) and isinstance(third, Tensor):
            index = self.get_device()
            if index == second.get_device() == third.get_device():
                host = (alias(self), alias(second), alias(third), *args)
                return adopt(launch(kernel, index, host, kwargs), index)
        index, host_args, host_kwargs = reader.read((self, second, third, *args), kwargs)
        return adopt(launch(kernel, index, host_args, host_kwargs), index)

    return run


def binary_in_place_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Two tensors in, the first is the result: `add_`; a number may replace the second."""
    with_number = _number_kernel(kernel)
    alias = reader.alias

    def run(self: Tensor, other: Tensor | complex, *args: Any, **kwargs: Any) -> Tensor:
        index = self.get_device()
        if isinstance(other, Tensor):
            if other.get_device() == index and (other is self or not on_one_storage(self, other)):
                launch(kernel, index, (alias(self), alias(other), *args), kwargs)
                return self
        elif with_number is not None:
            launch(with_number, index, (alias(self), other, *args), kwargs)
            return self
        index, host_args, host_kwargs = reader.read((self, other, *args), kwargs)
        launch(kernel, index, host_args, host_kwargs)
        return self

    return run


def binary_out_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Two tensors in, the result in a third: `mul.out`; a number may replace the second.

    DistributedDataParallel puts each gradient into its bucket by one.
    """
    general = out_kernel(kernel, reader)
    alias = reader.alias

    def run(self: Tensor | complex, other: Tensor | complex, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = kwargs["out"]
        index = out.get_device()
        if index >= 0 and isinstance(self, Tensor) and _is_beside(out, self, index):
            first, second = alias(self), None
            if isinstance(other, NUMBERS):
                second = kept_number(other, first)
            elif _is_beside(out, other, index):
                second = alias(other)
            if second is not None:
                host_kwargs = {**kwargs, "out": alias(out)}
                if launch_into(out, kernel, index, (first, second, *args), host_kwargs):
                    return out
        return general(self, other, *args, **kwargs)  # type: ignore[no-any-return]

    return run


def _is_beside(out: Tensor, other: Tensor, index: int) -> bool:
    """Whether a tensor is on device `index` too, on another storage than `out`."""
    return other.get_device() == index and not on_one_storage(out, other)


def _number_kernel(kernel: Kernel) -> Kernel | None:
    """The overload of a two-tensor operator that takes a number in place of the second tensor.

    `x + 1` reaches `add.Tensor` with the plain number 1; only `add.Scalar` takes it as such.
    """
    if schema_of(kernel.op).types[:2] != ["Tensor", "Tensor"]:
        return None
    packet = kernel.op.overloadpacket
    name = kernel.op._overloadname
    head, found, tail = name.rpartition("Tensor")
    candidates = [f"{head}Scalar{tail}", f"{name}_Scalar"] if found else ["Scalar"]
    for sibling in candidates:
        if sibling in packet.overloads():
            op = getattr(packet, sibling)
            return Kernel(op, host_code(op))
    return None


# Kernels for operators with a `device` argument: `empty`, `arange`, `zeros_like`.

_CPU = torch.device("cpu")


def factory_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Operators that make a tensor: on the device asked for, or that of the input."""
    takes_tensors = bool(schema_of(kernel.op).tensors)

    def run(
        *args: Any,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        source = -1
        host_args: Sequence[Any] = args
        host_kwargs = kwargs
        if takes_tensors:
            source, host_args, host_kwargs = reader.read(args, kwargs)
        host_kwargs["device"] = _CPU
        if device is not None and device.type in ("cpu", "meta"):
            host_kwargs["device"] = device  # no device has anything to do
            made: Tensor = kernel.run(HOST_KEYS, *host_args, **host_kwargs)
            return pinned.mark_result(made) if pin_memory else made
        pinned.check_not_wanted(pin_memory)
        index = source if device is None and source >= 0 else world.resolve(device)
        _look_for_room(kernel, index, args, host_kwargs)
        return adopt(launch(kernel, index, host_args, host_kwargs), index)

    return run


def _look_for_room(kernel: Kernel, index: int, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise OutOfMemoryError before numbers are made for which there is no room."""
    first = args[0] if args else None
    if isinstance(first, (list, tuple)):
        check_memory(index, first, kwargs.get("dtype"))
    elif isinstance(first, torch.Tensor):
        size = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else first.shape
        if math.prod(size) > MANY:  # `new_zeros` has the size second, `zeros_like` has none
            check_memory(index, size, kwargs.get("dtype") or first.dtype)
    elif any(type(value) in (int, float) and MANY < value < math.inf for value in args):
        held = charge(kernel.op, world.device(index), args, kwargs)
        if held is not None:
            held.release(())


# `functional_kernel`, `mutating_kernel`: any schema. `computed`: no CPU kernel needed.
#
# They take host aliases of all tensors, launch, and hand over the results: new tensors become the
# device's, and a result that is one of the arguments is that argument.

KernelMaker = Callable[[torch._ops.OpOverload], PythonKernel]


def functional_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Operators that write to none of their arguments: all results are new."""

    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        return adopt_all(launch(kernel, index, host_args, host_kwargs), index)

    return run


def mutating_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """In-place operators: a result that aliases an argument is that argument itself."""
    pick = result_picker(kernel.op)

    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        try:
            result = launch(kernel, index, host_args, host_kwargs)
        except RuntimeError as error:
            if not wants_to_resize(error) or not isinstance(args[0], torch.Tensor):
                raise
            # Some make their first argument grow (addbmm_): memory under an alias cannot.
            host_args[0] = host_alias(args[0]).clone()
            result = launch(kernel, index, host_args, host_kwargs, about=ON_COPIES)
            write_back_output(args[0], host_args[0])
            report_copied(kernel, index, reader, args, kwargs)
        return pick(result, args, kwargs, index)

    return run


def host_kernel(op: torch._ops.OpOverload, host_function: Callable[..., Any]) -> Kernel:
    """An operator that the host lacks, computed by `host_function` of CPU tensors."""

    return Kernel(op, _quietly(lambda _, *args, **kwargs: host_function(*args, **kwargs)))


def computed(host_function: Callable[..., Any]) -> KernelMaker:
    """What makes a kernel of such an operator, for the field `make` of a row."""
    return lambda op: functional_kernel(host_kernel(op, host_function), Arguments(op))


class Call(SimpleNamespace):
    """The arguments of a call by the names of its schema; None for those that it lacks."""

    def __getattr__(self, name: str) -> Any:
        return None


def by_name(op: torch._ops.OpOverload, compute: Callable[[Any], Any]) -> Callable[..., Any]:
    """What calls `compute` with a `Call`, for operators of many arguments."""
    named = schema_of(op).named
    return lambda *args, **kwargs: compute(Call(**named(args, kwargs)))


def computed_by_name(compute: Callable[[Any], Any]) -> KernelMaker:
    """As `computed`, of a function whose argument is a `Call`."""
    return lambda op: functional_kernel(host_kernel(op, by_name(op, compute)), Arguments(op))


def as_it_is(op: torch._ops.OpOverload) -> PythonKernel:
    """PyTorch's own code for `op`, which is the same under every key, on the device's tensors."""
    return functools.partial(op._handle.redispatch_boxed, HOST_KEYS)


# Kernels for operators with a `generator` argument: `normal_`, `bernoulli`, `multinomial`.
#
# They draw from the generator of the tensors' device (`simgpu._core.device_generator`), not from
# the CPU's. Where that is CUDA's, `simgpu._random` computes what a GPU would; where devices were
# made with `rng="host"`, the CPU's kernel does, from a CPU generator.

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


def _quietly(fill: Callable[..., Any]) -> Callable[..., Any]:
    """Host code past torch-function modes of the user, which must not see how it computes."""

    def run(keys: Keys, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return fill(keys, *args, **kwargs)

    return run


def drawing_in_place(kernel: Kernel, reader: Arguments, position: int) -> PythonKernel:
    """Operators that fill their first argument, the only tensor: `uniform_`, `normal_`."""
    draw, alias = Draw(kernel), reader.alias

    def run(
        tensor: Tensor, *args: Any, generator: torch.Generator | None = None, **kwargs: Any
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
        if isinstance(value, Tensor):
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


# Kernels for operators on lists of tensors: `_foreach_add_` and others, used by optimizers.


def foreach_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """One launch if all tensors of the lists are on one device, else one for each tensor."""
    written = schema_of(kernel.op).written
    in_one = (mutating_kernel if written else functional_kernel)(kernel, reader)
    facts = facts_of(kernel.op)
    takes_host = facts.one_on_host

    def run(*args: Any, **kwargs: Any) -> Any:
        if takes_host is not None:
            _check_place(args[0], args[1], takes_host, bool(written))
        try:
            result = in_one(*args, **kwargs)
        except DeviceMismatchError:
            return kernel.run(HOST_KEYS, *args, **kwargs)  # a loop over the device's tensors
        if facts.uncounted and _fit_one_launch(args[0]):
            return result
        for position in written:  # PyTorch leaves it to the kernels of lists to count changes
            increment_version([tensor for tensor in args[position] if not tensor.is_inference()])
        return result

    return run


def _check_place(
    tensors: Sequence[Tensor], added: Tensor, takes_host: bool, in_place: bool
) -> None:
    """The kernel that combines one tensor with a list in one launch reads it on their device.

    Lists that this kernel does not take are gone through one by one, and the tensor may be on the
    host (aten/src/ATen/native/cuda/ForeachBinaryOpScalarTensor.cu).
    """
    device = tensors[0].device
    if added.dim() or added.device == device or (takes_host and added.is_cpu):
        return
    if tensors[0].dtype == added.dtype and _fit_one_launch(tensors):
        raise DeviceMismatchError(
            f"scalar tensor {'is ' if in_place else ''}expected to be on {device} but is on "
            f"{added.device}"
        )


def _fit_one_launch(tensors: Sequence[Tensor]) -> bool:
    """Whether CUDA goes through a list in one launch: of one device and dtype, without gaps."""
    device, dtype = tensors[0].device, tensors[0].dtype
    return all(x.device == device and x.dtype == dtype for x in tensors) and all(
        torch.ops.aten.is_non_overlapping_and_dense(x) for x in tensors
    )


def device_kernel(op: torch._ops.OpOverload) -> PythonKernel:
    """The Python kernel that computes `op` on a simulated device, whichever its tensors are on."""
    make_kernel = _kind_of(op, schema_of(op))
    return make_kernel(Kernel(op, host_code(op)), Arguments(op))


def _kind_of(
    op: torch._ops.OpOverload, schema: Schema
) -> Callable[[Kernel, Arguments], PythonKernel]:
    if schema.outputs:
        is_plain = schema.is_binary_with_output() and "generator" not in schema.names
        return binary_out_kernel if is_plain else out_kernel
    if "generator" in schema.names:
        return random_kernel
    if "device" in schema.names:
        return factory_kernel
    if op._name.startswith("aten::_foreach_"):
        return foreach_kernel
    if schema.written:
        return binary_in_place_kernel if schema.is_binary_in_place() else mutating_kernel
    for count, make in enumerate((unary_kernel, binary_kernel, ternary_kernel), 1):
        if schema.makes_one_of(count):
            return make
    return functional_kernel
