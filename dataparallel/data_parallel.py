"""DataParallel: a module that runs its wrapped module on several devices at once.

A call scatters, replicates, applies and gathers, in this order; each of these steps is a
method that a subclass may replace. This file checks the module and keeps, between calls, the plan
from which its replicas are built.

May import: `scatter_gather`, `_replication`, `parallel_apply`, `_device_choice`, `_transfer`,
`_devices`, `torch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch.nn import Module

from dataparallel._device_choice import choose_devices, warn_of_imbalance
from dataparallel._devices import DeviceLike, resolve
from dataparallel._replication.plan import Plan
from dataparallel._transfer import transforms
from dataparallel.parallel_apply import parallel_apply
from dataparallel.scatter_gather import Chunking, chunk_sizes, gather, scatter_kwargs

__all__ = ["DataParallel", "data_parallel"]

T = TypeVar("T", bound=Module)


class DataParallel(Module, Generic[T]):
    """Run a module on several devices, each on its part of the batch.

    Args:
        module: the module to run; its parameters and buffers are on `device_ids[0]` at each call.
        device_ids: devices to run on (default: all of their type). Integers count the devices of
            the type the module's parameters are on, or of the available accelerator while they are
            on the CPU. A device may be named several times. On a machine without
            accelerators the default and an empty list mean no device: the module is called where
            it is.
        output_device: where outputs go, the CPU included (default: `device_ids[0]`).
        dim: dimension along which inputs are cut and outputs concatenated.
        chunking: "torch" cuts batches as `Tensor.chunk` does; with "balanced" chunk sizes differ
            by at most one and no device is idle while rows last.
        cache_parameters: without grad mode, keep the copies of parameters and buffers on their
            devices and send again only what has changed. Edits through `.data`, a storage or
            DLPack, by replays of a CUDA graph and by `torch._foreach_*` outside an optimizer cannot
            be seen, nor can running statistics that a module without a batch counter collects in
            calls that go past this object. The copies take memory until the next call in grad mode.

    Calling it scatters the arguments, makes one replica of the module for each chunk, calls the
    replicas at the same time and gathers their outputs. Backward sums the replicas' gradients in
    the module's parameters. Replicas live for one call: what a forward sets on itself is lost,
    except in-place changes of parameters and buffers by the first replica. With one device the
    module is called on it directly.

    Transforms of `torch.func` and forward-mode AD around the call reach the replicas. PyTorch has
    one level of forward mode for all threads, so a module that enters one itself, as with `jvp` in
    its forward, needs a subclass whose `parallel_apply` calls the replicas one after the other.

    Methods bound to the module before, and plain Python lists of its submodules, still lead to the
    original from inside a replica; register submodules in a ModuleList instead.

    Raises:
        ValueError: `device_ids` that name no device, or devices of several types.

    Raises (when called):
        RuntimeError: parameters or buffers that are not on `device_ids[0]`; on several devices, a
            lazy or compiled module (write `torch.compile(DataParallel(module))`).
        ValueError: arguments that yield different numbers of chunks.
        Exception: what a replica raised (see `parallel_apply`).

    Source: torch/nn/parallel/data_parallel.py.
    """

    device_ids: list[int]
    output_device: int | torch.device | None
    dim: int
    chunking: Chunking
    cache_parameters: bool

    def __init__(
        self,
        module: T,
        device_ids: Sequence[DeviceLike] | None = None,
        output_device: DeviceLike | None = None,
        dim: int = 0,
        *,
        chunking: Chunking = "torch",
        cache_parameters: bool = False,
    ) -> None:
        super().__init__()
        chunk_sizes(0, 1, chunking)  # refuse an unknown one here and not in the first forward
        self.module = module
        self.dim = dim
        self.chunking = chunking
        self.cache_parameters = cache_parameters
        self._plan: Plan | None = None
        devices, target = choose_devices(module, device_ids, output_device)
        self.device_type = devices[0].type if devices else None
        self.device_ids = [device.index or 0 for device in devices]
        self.output_device = target.index if target and target.type == self.device_type else target
        if not devices:
            return
        self.src_device_obj = devices[0]
        warn_of_imbalance(devices)
        if len(devices) == 1:
            self.module.to(devices[0])

    @property
    def module(self) -> T:
        """The wrapped module."""
        # A property and not left to Module.__getattr__: a subclass that forwards unknown attributes
        # with `getattr(self.module, name)` must not be asked for "module" itself.
        module = self._modules.get("module") if "_modules" in self.__dict__ else None
        if module is None:
            raise RuntimeError("DataParallel holds no module yet; call super().__init__(module)")
        return cast(T, module)

    @module.setter
    def module(self, value: T) -> None:
        # Reached only for what is no Module: those are taken by Module.__setattr__.
        raise TypeError(f"module must be a torch.nn.Module, but got {type(value).__name__}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module on its devices (see the class)."""
        module = self.module
        if not self.device_ids:
            return module(*inputs, **kwargs)
        devices = self._devices(self.device_ids)
        plan = None if len(devices) == 1 else self._current_plan(module)
        _check_placement(_tensors_of(module) if plan is None else plan.tensors, devices[0])
        output_device = self.device_ids[0] if self.output_device is None else self.output_device
        if self._has_replaced_steps():
            return _run(self, module, self.device_ids, output_device, inputs, kwargs)
        steps = _CheckedSteps(devices, plan, self.dim, self.chunking, self.cache_parameters)
        # On one device nothing is gathered.
        target = devices[0] if plan is None else self._devices([output_device])[0]
        return _run(steps, module, devices, target, inputs, kwargs)

    def replicate(self, module: T, device_ids: Sequence[DeviceLike]) -> list[T]:
        """A replica of `module` for each device."""
        plan = self._current_plan(module)
        devices = self._devices(device_ids)
        _check_placement(plan.tensors, devices[0])
        return cast(list[T], plan.replicas(devices, False, self.cache_parameters))

    def scatter(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[Any]
    ) -> Any:
        """The positional and the keyword arguments of each replica."""
        devices = self._devices(device_ids)
        return scatter_kwargs(inputs, kwargs, devices, self.dim, chunking=self.chunking)

    def parallel_apply(
        self, replicas: Sequence[T], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        """The replicas' outputs."""
        devices = self._devices(self.device_ids[: len(replicas)])
        return parallel_apply(replicas, inputs, kwargs, devices)

    def gather(self, outputs: Any, output_device: DeviceLike) -> Any:
        """The outputs together on one device."""
        return gather(outputs, self._devices([output_device])[0], self.dim)

    def _has_replaced_steps(self) -> bool:
        """Whether a subclass, or an attribute of this object, replaces one of the four steps."""
        kind = type(self)
        steps = (kind.scatter, kind.replicate, kind.parallel_apply, kind.gather)
        return steps != _OWN_STEPS or not _STEP_NAMES.isdisjoint(self.__dict__)

    def _devices(self, device_ids: Sequence[DeviceLike]) -> list[torch.device]:
        return [resolve(device, self.device_type or "cpu") for device in device_ids]

    def _current_plan(self, module: Module) -> Plan:
        if transforms.active():
            return Plan(module)  # not kept: it may hold tensors that end with the transform
        plan = self._plan
        if plan is None or not plan.is_current_for(module):
            plan = self._plan = Plan(module)
        return plan


# As they were defined: what is patched into the class later replaces a step as well.
_STEP_NAMES = frozenset(("scatter", "replicate", "parallel_apply", "gather"))
_OWN_STEPS = (
    DataParallel.scatter,
    DataParallel.replicate,
    DataParallel.parallel_apply,
    DataParallel.gather,
)


class _CheckedSteps(NamedTuple):
    """The four steps of a call whose devices are resolved and whose module is checked.

    The methods have the signatures of `DataParallel`'s, which have to resolve and check by
    themselves: a subclass may call them at any time and with other arguments.
    """

    devices: list[torch.device]
    plan: Plan | None  # None with one device, on which there are no replicas
    dim: int
    chunking: Chunking
    cached: bool

    def scatter(self, inputs: Any, kwargs: Any, devices: Sequence[torch.device]) -> Any:
        return scatter_kwargs(inputs, kwargs, devices, self.dim, chunking=self.chunking)

    def replicate(self, module: Module, devices: Sequence[torch.device]) -> list[Module]:
        assert self.plan is not None
        return self.plan.replicas(devices, False, self.cached)

    def parallel_apply(self, replicas: Sequence[Module], inputs: Any, kwargs: Any) -> list[Any]:
        return parallel_apply(replicas, inputs, kwargs, self.devices[: len(replicas)])

    def gather(self, outputs: Any, device: torch.device) -> Any:
        return gather(outputs, device, self.dim)


def _run(
    steps: Any,
    module: Module,
    device_ids: Sequence[DeviceLike],
    output_device: DeviceLike,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
) -> Any:
    """Call the module by these steps: a DataParallel's own methods, or `_CheckedSteps`."""
    args, keywords = steps.scatter(inputs, kwargs, device_ids)
    if not args and not keywords:
        # Nothing to cut: one call, on the first device.
        args, keywords = ((),), ({},)
    if len(device_ids) == 1:
        return module(*args[0], **keywords[0])
    replicas = steps.replicate(module, device_ids[: len(args)])
    outputs = steps.parallel_apply(replicas, args, keywords)
    return steps.gather(outputs, output_device)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[DeviceLike] | None = None,
    output_device: DeviceLike | None = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
    *,
    chunking: Chunking = "torch",
) -> Any:
    """Run a module once on several devices: DataParallel as a function.

    Args:
        module: its parameters and buffers are on `device_ids[0]`.
        inputs: a tuple of positional arguments, one other object as the only argument, or None.
        module_kwargs: keyword arguments.

    The other arguments, the result and what is raised are those of `DataParallel`.

    Source: torch/nn/parallel/data_parallel.py, data_parallel.
    """
    if not isinstance(inputs, tuple):
        inputs = (inputs,) if inputs is not None else ()
    devices, target = choose_devices(module, device_ids, output_device)
    if not devices or target is None:
        return module(*inputs, **(module_kwargs or {}))
    plan = None if len(devices) == 1 else Plan(module)
    _check_placement(_tensors_of(module) if plan is None else plan.tensors, devices[0])
    steps = _CheckedSteps(devices, plan, dim, chunking, cached=False)
    return _run(steps, module, devices, target, inputs, module_kwargs)


def _tensors_of(module: Module) -> Iterator[torch.Tensor]:
    """The parameters and buffers of a module and its submodules."""
    # Module.parameters() names every tensor, which costs as much as a small module's forward.
    seen = {module}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for registered in (current._parameters, current._buffers):
            for tensor in registered.values() if registered else ():
                if tensor is not None:
                    yield tensor
        for child in current._modules.values() if current._modules else ():
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)


def _check_placement(tensors: Iterable[torch.Tensor], source: torch.device) -> None:
    for tensor in tensors:
        if tensor.device != source:
            raise RuntimeError(
                "module must have its parameters and buffers "
                f"on device {source} (device_ids[0]) but found one of them on device: "
                f"{tensor.device}"
            )
