"""torch.compile with its default backend: graphs on devices are traced and run op by op.

Inductor writes kernels for the CPU and for GPUs that it knows. A graph with simulated tensors runs
as under backend="eager" instead, so graph breaks, recompilations and what cannot be traced are
found. All other graphs are compiled by inductor as ever, also those of the same model on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from simgpu import _naming
from simgpu._backend.torch_patches.routing import routed
from simgpu._patches import Patch, Row


def _is_on_devices(_: Any, model: torch.fx.GraphModule, inputs: Any, **__: Any) -> bool:
    """Whether an input of a traced graph, or a tensor made in it, is on a simulated device."""
    made = [node.meta.get("example_value") for node in model.graph.nodes]
    return any(
        isinstance(leaf, torch.Tensor) and leaf.device.type in _naming.names
        for leaf in pytree.tree_leaves([inputs, made])
    )


def _run_op_by_op(_: Any, model: torch.fx.GraphModule, inputs: Any, **__: Any) -> Any:
    return model.forward


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch._TorchCompileInductorWrapper",
        "__call__",
        wrap=routed(_run_op_by_op, _is_on_devices),
        why="the default backend of torch.compile has no kernels for devices: they run op by op",
    ),
)
