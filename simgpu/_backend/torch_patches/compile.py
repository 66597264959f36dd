"""torch.compile and TorchScript: graphs on simulated devices run operator by operator.

Inductor writes kernels for the CPU and for GPUs that it knows. A graph with simulated tensors runs
as under backend="eager" instead, so graph breaks, recompilations and what cannot be traced are
found. So does a graph that a program hands to inductor, or to the backend "cudagraphs", itself.
What would write a file for later, such as AOTInductor, raises. All other graphs are compiled by
inductor as ever, also those of the same model on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from simgpu._backend.torch_patches.routing import routed
from simgpu._util import naming
from simgpu._util.patching import Table
from simgpu.errors import UnsupportedError

PATCHES = Table()

_NO_KERNELS = (
    "inductor writes no kernels for simulated devices, so there is nothing to save: torch.compile "
    "runs a graph on {device} op by op. Compile the model on the CPU, or where the GPUs are"
)


def _on_devices(model: Any, inputs: Any) -> torch.device | None:
    """The simulated device of a graph's input or weight, or of a tensor made in it."""
    made = [node.meta.get(key) for node in model.graph.nodes for key in ("example_value", "val")]
    weights = list(model.state_dict().values()) if isinstance(model, torch.nn.Module) else []
    for leaf in pytree.tree_leaves([inputs, made, weights]):
        if isinstance(leaf, torch.Tensor) and leaf.device.type in naming.names:
            return leaf.device
    return None


def _is_on_devices(model: Any, inputs: Any, *_: Any, **__: Any) -> bool:
    return _on_devices(model, inputs) is not None


def _run_op_by_op(model: torch.fx.GraphModule, *_: Any, **__: Any) -> Any:
    return model.forward


def _refuse(model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
    raise UnsupportedError(_NO_KERNELS.format(device=_on_devices(model, inputs)))


PATCHES.add(
    "torch._TorchCompileInductorWrapper.__call__",
    wrap=routed(lambda _, *args: _run_op_by_op(*args), lambda _, *args: _is_on_devices(*args)),
    why="the default backend of torch.compile has no kernels for devices: they run op by op",
)
PATCHES.add(
    "torch._inductor.compile_fx.compile_fx",
    wrap=routed(_run_op_by_op, _is_on_devices),
    late=True,
    why="the same for graphs that reach inductor otherwise, as by torch._inductor.compile",
)
PATCHES.add(
    "torch._inductor.compile_fx.compile_fx_aot",
    "torch._inductor.compile_fx.compile_fx_inner",
    "torch._inductor.standalone_compile.standalone_compile",
    wrap=routed(_refuse, _is_on_devices),
    optional=True,
    late=True,
    why="there are no kernels to be written to a file, or to be called by a program",
)
PATCHES.add(
    "torch._dynamo.backends.cudagraphs.cudagraphs",
    wrap=routed(_run_op_by_op, _is_on_devices),
    late=True,
    why="it captures by functions of CUDA's build: a graph on devices runs op by op",
)


# TorchScript keeps its default executor: the fuser of the older one refuses simulated devices.
#
# The older executor looks for operators to fuse, and raises for each device that is neither the
# CPU, nor CUDA, nor XPU (torch/csrc/jit/passes/graph_fuser.cpp). Programs for CUDA turn to it for
# speed; what scripts compute is the same with both.

_asked_for_default = True


@PATCHES.wrap(
    "torch._C._jit_set_profiling_executor",
    why="the fuser of TorchScript's older executor raises for a device that it does not know",
)
def _note(stock: Callable[[bool], bool]) -> Callable[[bool], bool]:
    global _asked_for_default
    _asked_for_default = stock(True)
    return set_profiling_executor


def set_profiling_executor(enabled: bool) -> bool:
    """Note which executor is asked for, and return whether it was the default one before."""
    global _asked_for_default
    before, _asked_for_default = _asked_for_default, bool(enabled)
    return before
