"""Device kernels out of host kernels: take host aliases, compute, hand the results over.

`device_kernel` looks at an operator's schema and picks the shape of its kernel. One- and
two-tensor operators have kernels of their own, because nearly every step of a program is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.outputs import compute_out, write_back_output
from simgpu._memory import pinned
from simgpu._memory.host_aliases import on_one_storage
from simgpu._memory.ownership import adopt, adopt_all, make_sure_of_room
from simgpu._native.dlpack_relabel import host_alias
from simgpu._runtime import world
from simgpu._runtime.launch import HOST_KEYS, Kernel, launch, launch_copy
from simgpu._runtime.random import check_generator
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor
PythonKernel = Callable[..., Any]
_CPU = torch.device("cpu")
_NUMBERS = (int, float, complex)


def device_kernel(op: torch._ops.OpOverload) -> PythonKernel:
    """The Python kernel that computes `op` on a simulated device."""
    schema = op._schema
    arguments = schema.arguments
    kernel, reader = Kernel(op), Arguments(op)
    names = {argument.name for argument in arguments}
    if any(a.alias_info and a.alias_info.is_write and a.kwarg_only for a in arguments):
        return _out(kernel, reader)
    if "generator" in names:
        return _random(kernel, reader)
    if "device" in names:
        return _factory(kernel, reader)
    tensors = [i for i, a in enumerate(arguments) if "Tensor" in str(a.type)]
    plain = all(str(arguments[i].type) == "Tensor" for i in tensors)
    written = [i for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
    if op._name.startswith("aten::_foreach_"):
        return _foreach(kernel, (_mutating if written else _functional)(kernel, reader), written)
    if written:
        in_place = plain and written == [0] and len(schema.returns) == 1
        return (_binary_in_place if in_place and tensors == [0, 1] else _mutating)(kernel, reader)
    if plain and [str(returned.type) for returned in schema.returns] == ["Tensor"]:
        if tensors == [0] and "nested" not in op._name:
            return _unary(kernel, reader)
        if tensors == [0, 1] and "nested" not in op._name:
            return _binary(kernel, reader)
    return _functional(kernel, reader)


def computed_kernel(op: torch._ops.OpOverload, host_function: Callable[..., Any]) -> PythonKernel:
    """A kernel for an operator that the host lacks, computed by `host_function` of CPU tensors."""

    def run(_: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        # The function is ours: torch-function modes of the user must not see how it computes.
        with torch._C.DisableTorchFunction():
            return host_function(*args, **kwargs)

    return _functional(Kernel(op, run), Arguments(op))


def _unary(kernel: Kernel, reader: Arguments) -> PythonKernel:
    alias = reader.alias

    def run(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        index = self.get_device()
        return adopt(launch(kernel, index, (alias(self), *args), kwargs), index)

    return run


def _binary(kernel: Kernel, reader: Arguments) -> PythonKernel:
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


def _number_kernel(kernel: Kernel) -> Kernel | None:
    """The overload of a two-tensor operator that takes a number in place of the second tensor.

    `x + 1` reaches `add.Tensor` with the plain number 1; only `add.Scalar` takes it as such.
    """
    if [str(a.type) for a in kernel.op._schema.arguments[:2]] != ["Tensor", "Tensor"]:
        return None
    packet = kernel.op.overloadpacket
    overload = kernel.op._overloadname
    head, found, tail = overload.rpartition("Tensor")
    candidates = [f"{head}Scalar{tail}", f"{overload}_Scalar"] if found else ["Scalar"]
    for sibling in candidates:
        if sibling in packet.overloads():
            return Kernel(getattr(packet, sibling))
    return None


def _functional(kernel: Kernel, reader: Arguments) -> PythonKernel:
    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        return adopt_all(launch(kernel, index, host_args, host_kwargs), index)

    return run


def _mutating(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """In-place operators: a result that aliases an argument is that argument itself."""
    pick = _result_picker(kernel.op)

    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        try:
            result = launch(kernel, index, host_args, host_kwargs)
        except RuntimeError as error:
            if "not resizable" not in str(error) or not isinstance(args[0], Tensor):
                raise
            # Some let their first argument grow (addbmm_): memory under an alias cannot.
            host_args[0] = host_alias(args[0]).clone()
            result = launch(kernel, index, host_args, host_kwargs)
            write_back_output(args[0], host_args[0])
        return pick(result, args, kwargs, index)

    return run


def _binary_in_place(kernel: Kernel, reader: Arguments) -> PythonKernel:
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


def _foreach(kernel: Kernel, together: PythonKernel, written: list[int]) -> PythonKernel:
    """Operators on lists: one kernel if all tensors are on one device, else tensor by tensor."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            result = together(*args, **kwargs)
        except DeviceMismatchError:
            return kernel.run(HOST_KEYS, *args, **kwargs)  # a loop over the device's tensors
        for position in written:  # PyTorch leaves this to the kernels of lists
            increment_version([tensor for tensor in args[position] if not tensor.is_inference()])
        return result

    return run


def _random(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Operators that draw from a generator: the device's own unless the caller gives one."""
    pick = _result_picker(kernel.op)
    names = [argument.name for argument in kernel.op._schema.arguments]
    position = names.index("generator")
    exact = kernel.name.startswith("randperm")

    def run(*args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Any:
        if len(args) > position:
            args, generator = args[:position], args[position]
        index, host_args, host_kwargs = reader.read(args, kwargs)
        if generator is None:
            generator = world.device(index).generator
        else:
            generator = check_generator(generator, index, exact=exact)
        host_kwargs["generator"] = generator
        return pick(launch(kernel, index, host_args, host_kwargs), args, kwargs, index)

    return run


def _factory(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Operators with a `device` argument: the result lies there, or where the input lies."""
    takes_tensors = any("Tensor" in str(a.type) for a in kernel.op._schema.arguments)

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
        if device is not None and device.type == "cpu":
            host = launch_copy(kernel, source, None, host_args, host_kwargs)
            return pinned.mark_result(host) if pin_memory else host
        pinned.check_not_wanted(pin_memory)
        index = source if device is None and source >= 0 else world.resolve(device)
        if args and isinstance(args[0], (list, tuple)):
            make_sure_of_room(index, args[0], kwargs.get("dtype"))
        return adopt(launch(kernel, index, host_args, host_kwargs), index)

    return run


def _out(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """`out=` operators: results are written into the given tensors, which may have to grow."""
    arguments = kernel.op._schema.arguments
    out_names = [
        a.name for a in arguments if a.kwarg_only and a.alias_info and a.alias_info.is_write
    ]
    draws = any(a.name == "generator" for a in arguments)

    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        if draws:
            given = host_kwargs.get("generator")
            host_kwargs["generator"] = (
                world.device(index).generator
                if given is None
                else check_generator(given, index, exact=kernel.name.startswith("randperm"))
            )
        outs = {name: kwargs[name] for name in out_names}
        compute_out(kernel, index, host_args, host_kwargs, outs)
        results = tuple(outs.values())
        return results[0] if len(results) == 1 else results

    return run


def _result_picker(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """For every result of `op`: the argument that it aliases, or a fresh tensor to adopt."""
    schema = op._schema
    where: list[str | None] = []
    for returned in schema.returns:
        aliased = returned.alias_info.before_set if returned.alias_info else None
        names = [
            a.name for a in schema.arguments if a.alias_info and aliased == a.alias_info.before_set
        ]
        where.append(names[0] if names else None)
    positions = {argument.name: position for position, argument in enumerate(schema.arguments)}

    def argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return kwargs[name] if name in kwargs else args[positions[name]]

    def pick(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Any:
        if not where:
            return None
        if len(where) == 1:
            name = where[0]
            return adopt_all(result, index) if name is None else argument(name, args, kwargs)
        return tuple(
            adopt_all(value, index) if name is None else argument(name, args, kwargs)
            for name, value in zip(where, result, strict=True)
        )

    return pick
