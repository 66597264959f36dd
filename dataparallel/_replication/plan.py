"""`Plan`: what a module consists of, kept between calls, and how replicas are built from it.

A `Plan` lists a module's submodules with the names of what each holds, its parameters and buffers,
and the buckets in which these travel. Each forward builds new replicas from it: module objects made
without their constructor, around a copy of the original's `__dict__` with the replica's own tensors
and submodules put in. Objects are never reused, so nothing that a forward sets on a replica is seen
by the next one, and replicas that are still alive, or belong to another thread, stay as they are.
What may change here: what counts as a change of the module (`is_current_for`), and how a replica is
built (`build`).
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

# Module.__setattr__ looks for parameters and submodules in every value.
_set_attribute = object.__setattr__

# The tensors of one replica in the plan's order, and None at the end, where the index -1 leads.
Row = list[Any]


class _ModuleRecipe:
    """How one submodule of a replica is made: the original, and the indices of what it holds."""

    __slots__ = ("buffers", "children", "contents", "kind", "module", "params", "plain")

    def __init__(self, module: Module) -> None:
        self.module = module
        self.kind = type(module)
        self.plain = (
            self.kind._replicate_for_data_parallel is Module._replicate_for_data_parallel
            and self.kind.__setattr__ is Module.__setattr__
        )
        self.contents = _contents(module)
        # Names with an index into the plan's tensors or recipes; -1 means None.
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


def _signature(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What may change of a tensor without it becoming another object."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.dtype, tensor.layout, tensor.requires_grad
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


class Plan:
    """What the replicas of one module are built from (see the head of this file)."""

    def __init__(self, network: Module) -> None:
        _check_replicatable(network)
        # Strong references: an id in `contents` must not come back as another object's.
        self.recipes: list[_ModuleRecipe] = []
        module_indices: dict[int, int] = {}
        for module in network.modules():
            module_indices[id(module)] = len(self.recipes)
            self.recipes.append(_ModuleRecipe(module))
        self.tensors = _unique_tensors(network)
        self.differentiable = sum(tensor.requires_grad for tensor in self.tensors)
        self.signatures = [_signature(tensor) for tensor in self.tensors]
        self.layout = lay_out(self.tensors)
        self.cache: ParameterCache | None = None
        self.gradient_layout = lay_out(self.tensors[: self.differentiable])
        tensor_indices = {id(tensor): index for index, tensor in enumerate(self.tensors)}
        for recipe in self.recipes:
            module = recipe.module
            for target, registered, known in (
                (recipe.params, module._parameters, tensor_indices),
                (recipe.buffers, module._buffers, tensor_indices),
                (recipe.children, module._modules, module_indices),
            ):
                for name, value in registered.items():
                    target.append((name, -1 if value is None else known[id(value)]))

    def is_current_for(self, network: Module) -> bool:
        """Whether `network` is still the module this plan was made for, inside and out."""
        if self.recipes[0].module is not network:
            return False
        for recipe in self.recipes:
            module = recipe.module
            if type(module) is not recipe.kind or _contents(module) != recipe.contents:
                return False
        return [_signature(tensor) for tensor in self.tensors] == self.signatures

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
            self.cache = None  # what training changes without a trace, see `parameter_cache`
            rows = self._rows(devices)
        for row in rows:
            row.append(None)
        return [self.build(row) for row in rows]

    def _rows(self, devices: Sequence[torch.device]) -> list[Row]:
        count = self.differentiable
        if not count:
            return self._detached_rows(devices)
        non_differentiable = NonDifferentiable(self.layout, self.tensors[count:])
        copies = apply(
            Broadcast, devices, non_differentiable, self.gradient_layout, *self.tensors[:count]
        )
        return [
            [*copies[replica * count : (replica + 1) * count], *rest]
            for replica, rest in enumerate(non_differentiable.copies)
        ]

    def _detached_rows(self, devices: Sequence[torch.device]) -> list[Row]:
        with torch.no_grad():
            return broadcast_laid_out(list(self.tensors), devices, self.layout)

    def _cached_rows(self, devices: Sequence[torch.device]) -> list[Row]:
        groups = [
            (recipe.module.training, [index for _, index in recipe.buffers if index >= 0])
            for recipe in self.recipes
            if recipe.buffers
        ]
        cache = refreshed(self.cache, self.tensors, self.layout, devices, groups)
        self.cache = cache
        return [list(self.tensors), *(list(row) for row in cache.rows[1 : len(devices)])]

    def build(self, row: Row) -> Module:
        """One replica, which holds the tensors of `row`."""
        replicas: list[Any] = []  # of each submodule, in the order of the recipes
        # One loop without calls: it runs for every submodule of every replica in every forward.
        for recipe in self.recipes:
            if not recipe.plain:
                replicas.append(_custom_replica(recipe, row))
                continue
            kind: Any = recipe.kind
            replica = kind.__new__(kind)
            state = recipe.module.__dict__.copy()
            params, buffers = recipe.params, recipe.buffers
            state["_parameters"] = {name: row[index] for name, index in params} if params else {}
            state["_buffers"] = {name: row[index] for name, index in buffers} if buffers else {}
            state["_modules"] = {}
            state["_is_replica"] = True
            _set_attribute(replica, "__dict__", state)
            replicas.append(replica)
        for recipe, replica in zip(self.recipes, replicas, strict=True):
            if recipe.children:
                _set_children(recipe, replica, replicas)
        whole: Module = replicas[0]
        return whole


def _unique_tensors(network: Module) -> list[torch.Tensor]:
    """Parameters, then buffers, each once; those that require grad come before all others."""
    found: dict[int, torch.Tensor] = {}
    for tensor in [*network.parameters(), *network.buffers()]:
        if is_lazy(tensor):
            raise ValueError(
                "Attempted to use an uninitialized parameter or buffer: such a module cannot be "
                "replicated. Run one batch through the module itself first, so that its lazy "
                "layers learn their shapes"
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


def _custom_replica(recipe: _ModuleRecipe, row: Row) -> Module:
    """A replica of a module that has its own way of being copied or of taking attributes."""
    replica = recipe.module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    if isinstance(replica, torch.jit.ScriptModule):
        for name, index in [*recipe.params, *recipe.buffers]:
            if index >= 0:
                setattr(replica, name, row[index])
        return replica
    # Set as plain attributes first, so that a module which keeps lists of its weights hears of it
    # (torch.nn.RNNBase); then put where parameters() and buffers() look.
    replica._parameters = {}
    for name, index in [*recipe.params, *recipe.buffers]:
        if index >= 0:
            setattr(replica, name, row[index])
            replica.__dict__.pop(name, None)
    replica._parameters = {name: row[index] for name, index in recipe.params}
    replica._buffers = {name: row[index] for name, index in recipe.buffers}
    return replica  # type: ignore[no-any-return]


def _set_children(recipe: _ModuleRecipe, replica: Module, replicas: Sequence[Module]) -> None:
    """Put the replicas of a module's children into its replica."""
    if recipe.plain:
        replica._modules.update(
            {name: None if index < 0 else replicas[index] for name, index in recipe.children}
        )
        return
    for name, index in recipe.children:
        if index < 0:
            replica._modules[name] = None
        else:
            setattr(replica, name, replicas[index])
