"""How a module is replicated: its skeleton, made once and used as long as the module is the same.

A `Plan` knows every submodule, which tensor goes where, and how the tensors travel in buckets. A
forward builds its replicas from it: bare module objects around a copy of the original's `__dict__`
with the replica's own tensors and submodules put in. Objects are never reused, so nothing that a
forward sets on a replica is seen by the next one, and replicas that are still alive, or belong to
another thread, stay as they are. What may change here: what counts as a change of the module
(`fits`), and how an object is built (`build`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy

from dataparallel._replication.parameter_cache import ParameterCache, refreshed
from dataparallel._transfer import transforms
from dataparallel._transfer.autograd import Broadcast, NonDifferentiable, apply
from dataparallel._transfer.buckets import lay_out
from dataparallel._transfer.copies import broadcast_laid_out

_set = object.__setattr__  # Module's own looks for parameters in every value

Row = list[Any]  # the tensors of one replica, in the plan's order, and a None at the end


class _ModuleRecipe:
    """One submodule: the object it is made from and the indices of what it holds."""

    __slots__ = ("buffers", "children", "contents", "kind", "module", "params", "plain")

    def __init__(self, module: Module) -> None:
        self.module = module
        self.kind = type(module)
        self.plain = (
            self.kind._replicate_for_data_parallel is Module._replicate_for_data_parallel
            and self.kind.__setattr__ is Module.__setattr__
        )
        self.contents = _contents(module)
        # Names with their index among the plan's tensors or skeletons; -1 is None.
        self.params: list[tuple[str, int]] = []
        self.buffers: list[tuple[str, int]] = []
        self.children: list[tuple[str, int]] = []


def _contents(module: Module) -> list[Any]:
    """What is registered in a module now: names and identities, comparable with ==."""
    found: list[Any] = []
    for registered in (module._parameters, module._buffers, module._modules):
        if registered:
            found += registered.keys()
            found += map(id, registered.values())
        found.append(None)
    return found


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What may change of a tensor without it becoming another object."""
    if tensor.layout is not torch.strided:
        return tensor.dtype, tensor.layout, tensor.requires_grad
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


class Plan:
    """The replication plan of one module (see the head of this file)."""

    def __init__(self, network: Module) -> None:
        _check_replicatable(network)
        # Strong references: an id in `contents` must not come back as another object's.
        self.skeletons: list[_ModuleRecipe] = []
        indices: dict[int, int] = {}
        for module in network.modules():
            indices[id(module)] = len(self.skeletons)
            self.skeletons.append(_ModuleRecipe(module))
        self.tensors = _unique_tensors(network)
        self.differentiable = sum(tensor.requires_grad for tensor in self.tensors)
        self.facts = [_facts(tensor) for tensor in self.tensors]
        self.layout = lay_out(self.tensors)
        self.cache: ParameterCache | None = None
        self.gradient_layout = lay_out(self.tensors[: self.differentiable])
        places = {id(tensor): index for index, tensor in enumerate(self.tensors)}
        for skeleton in self.skeletons:
            module = skeleton.module
            for target, registered, known in (
                (skeleton.params, module._parameters, places),
                (skeleton.buffers, module._buffers, places),
                (skeleton.children, module._modules, indices),
            ):
                for name, value in registered.items():
                    target.append((name, -1 if value is None else known[id(value)]))

    def fits(self, network: Module) -> bool:
        """Whether `network` is still the module this plan was made for, inside and out."""
        if self.skeletons[0].module is not network:
            return False
        for skeleton in self.skeletons:
            module = skeleton.module
            if type(module) is not skeleton.kind or _contents(module) != skeleton.contents:
                return False
        return [_facts(tensor) for tensor in self.tensors] == self.facts

    def replicas(
        self, devices: Sequence[torch.device], detach: bool, cached: bool = False
    ) -> list[Module]:
        """A replica for each device; the first shares the original's memory.

        With `detach`, or without grad mode, the first holds the original's tensors themselves, the
        others are cut off from autograd, and with `cached` only what has changed since the last
        such call is sent (all of it within a transform).
        """
        if detach or not torch.is_grad_enabled():
            cached = cached and not transforms.active()
            rows = self._cached_rows(devices) if cached else self._detached_rows(devices)
        else:
            self.cache = None  # what training changes without a trace, see `_cache`
            rows = self._rows(devices)
        for row in rows:
            row.append(None)
        return [self.build(row) for row in rows]

    def _rows(self, devices: Sequence[torch.device]) -> list[Row]:
        count = self.differentiable
        if not count:
            return self._detached_rows(devices)
        passengers = NonDifferentiable(self.layout, self.tensors[count:])
        copies = apply(Broadcast, devices, passengers, self.gradient_layout, *self.tensors[:count])
        return [
            [*copies[replica * count : (replica + 1) * count], *others]
            for replica, others in enumerate(passengers.copies)
        ]

    def _detached_rows(self, devices: Sequence[torch.device]) -> list[Row]:
        with torch.no_grad():
            return broadcast_laid_out(list(self.tensors), devices, self.layout)

    def _cached_rows(self, devices: Sequence[torch.device]) -> list[Row]:
        groups = [
            (skeleton.module.training, [index for _, index in skeleton.buffers if index >= 0])
            for skeleton in self.skeletons
            if skeleton.buffers
        ]
        cache = refreshed(self.cache, self.tensors, self.layout, devices, groups)
        self.cache = cache
        return [list(self.tensors), *(list(row) for row in cache.rows[1 : len(devices)])]

    def build(self, row: Row) -> Module:
        """One replica around its tensors."""
        shells: list[Any] = []
        # One loop without calls: it runs for every submodule of every replica in every forward.
        for skeleton in self.skeletons:
            if not skeleton.plain:
                shells.append(_custom_shell(skeleton, row))
                continue
            kind: Any = skeleton.kind
            shell = kind.__new__(kind)
            state = skeleton.module.__dict__.copy()
            params, buffers = skeleton.params, skeleton.buffers
            state["_parameters"] = {name: row[index] for name, index in params} if params else {}
            state["_buffers"] = {name: row[index] for name, index in buffers} if buffers else {}
            state["_modules"] = {}
            state["_is_replica"] = True
            _set(shell, "__dict__", state)
            shells.append(shell)
        for skeleton, shell in zip(self.skeletons, shells, strict=True):
            if skeleton.children:
                _adopt(skeleton, shell, shells)
        replica: Module = shells[0]
        return replica


def _unique_tensors(network: Module) -> list[torch.Tensor]:
    """Parameters, then buffers, each once; those that require grad come before all others."""
    found: dict[int, torch.Tensor] = {}
    for tensor in [*network.parameters(), *network.buffers()]:
        if is_lazy(tensor):
            raise RuntimeError(
                "a module with uninitialised parameters or buffers cannot be replicated; run one "
                "batch through the module itself first, so that its lazy layers learn their shapes"
            )
        found.setdefault(id(tensor), tensor)
    return sorted(found.values(), key=lambda tensor: not tensor.requires_grad)


def _check_replicatable(network: Module) -> None:
    if any(
        isinstance(module, torch.jit.ScriptModule)
        and not all(isinstance(inner, torch.jit.ScriptModule) for inner in module.modules())
        for module in network.modules()
    ):
        raise RuntimeError(
            "Cannot replicate network where python modules are children of ScriptModule"
        )
    for name, module in network.named_modules():
        if _is_compiled(module):
            raise RuntimeError(
                f"a module that was compiled cannot be replicated, but {name or 'the module'!r} is "
                "one: its code computes with its own parameters, not with a replica's. Compile "
                "around the replicas instead: torch.compile(DataParallel(module))"
            )


def _is_compiled(module: Module) -> bool:
    """Whether `module.compile()` was called or `torch.compile` returned it."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # not imported for this
    wrapped = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return wrapped or module._compiled_call_impl is not None


def _custom_shell(skeleton: _ModuleRecipe, row: Row) -> Module:
    """A replica of a module that has its own way of being copied or of taking attributes."""
    shell = skeleton.module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    if isinstance(shell, torch.jit.ScriptModule):
        for name, index in [*skeleton.params, *skeleton.buffers]:
            if index >= 0:
                setattr(shell, name, row[index])
        return shell
    # Set as plain attributes first, so that a module which keeps lists of its weights hears of it
    # (torch.nn.RNNBase); then put where parameters() and buffers() look.
    shell._parameters = {}
    shell._buffers = {}
    for name, index in [*skeleton.params, *skeleton.buffers]:
        if index >= 0:
            setattr(shell, name, row[index])
            shell.__dict__.pop(name, None)
    shell._parameters = {name: row[index] for name, index in skeleton.params}
    shell._buffers = {name: row[index] for name, index in skeleton.buffers}
    return shell  # type: ignore[no-any-return]


def _adopt(skeleton: _ModuleRecipe, shell: Module, shells: Sequence[Module]) -> None:
    if skeleton.plain:
        shell._modules.update(
            {name: None if index < 0 else shells[index] for name, index in skeleton.children}
        )
        return
    for name, index in skeleton.children:
        if index < 0:
            shell._modules[name] = None
        else:
            setattr(shell, name, shells[index])
