"""TorchScript under `as_cuda`: what the compiler knows of torch, and two operators of its graphs.

The compiler of TorchScript knows functions of torch by identity, in a table of its own, and tries
to compile whatever it does not find there. Two of the operators that it compiles to never reach
the dispatcher: `x.to("cuda:1")` without a dtype asks CUDA's driver first, and `x.is_cuda` reads the
tensor's type in C++. Each is replaced by others that mean the same on real GPUs, so that a scripted
module that is saved here runs there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.jit._builtins

from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches, Table

PATCHES = Table()

_IS_CUDA = """graph(%x):
  %found : bool = prim::is_cuda(%x)
  return (%found)"""

_IS_CUDA_OR_SIMULATED = f"""graph(%x):
  %real : bool = prim::is_cuda(%x)
  %device : Device = prim::device(%x)
  %type : str = prim::type(%device)
  %ours : str = prim::Constant[value="{DEVICE_TYPE}"]()
  %simulated : bool = aten::eq(%type, %ours)
  %found : bool = aten::__or__(%real, %simulated)
  return (%found)"""


def _for_devices(graph: Any) -> None:
    """Replace what would ask CUDA itself in a graph that has not run yet."""
    for node in graph.findAllNodes("aten::to"):
        if "to.prim_Device(" in node.schema():
            tensor, device, dtype, non_blocking, copy = node.inputs()
            none = _insert(graph, "prim::Constant", [], node)
            none.setType(torch._C.NoneType.get())
            arguments = [tensor, dtype, none, device, none, non_blocking, copy, none]
            moved = _insert(graph, "aten::to", arguments, node)  # to.dtype_layout
            moved.setType(node.output().type())
            node.output().replaceAllUsesWith(moved)
            node.destroy()
    if f'value="{DEVICE_TYPE}"' not in str(graph):  # a function is compiled once, and kept
        torch._C._jit_pass_custom_pattern_based_rewrite_graph(
            _IS_CUDA, _IS_CUDA_OR_SIMULATED, graph
        )


def _insert(graph: Any, kind: str, arguments: list[Any], before: Any) -> Any:
    """The output of a new node in front of another."""
    node = graph.create(kind, arguments, 1)
    node.insertBefore(before)
    return node.output()


def _graphs(scripted: Any) -> Iterator[Any]:
    """The graphs of a scripted function, or of all methods of a module and the modules in it."""
    if isinstance(scripted, torch.jit.ScriptFunction):
        yield scripted.graph
    elif isinstance(scripted, torch.jit.ScriptModule):
        for module in scripted.modules():
            compiled: Any = module._c
            for name in compiled._method_names():
                yield compiled._get_method(name).graph


_WHY_FOR_DEVICES = "x.to('cuda:1') and x.is_cuda ask CUDA's driver and the tensor's type in C++"


@PATCHES.around("torch.jit.script", why=_WHY_FOR_DEVICES)
def _script(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 2  # names are the caller's
    return _edited(stock(*args, **kwargs))


@PATCHES.around("torch.jit.load", why=_WHY_FOR_DEVICES)
def _load(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _edited(stock(*args, **kwargs))


def _edited(scripted: Any) -> Any:
    """A scripted function or module, whose graphs ask nothing of CUDA itself."""
    for graph in _graphs(scripted):
        _for_devices(graph)
    return scripted


@PATCHES.action(
    "the table of operators that TorchScript knows",
    why="torch.tensor and other factories are operators to the compiler, replaced or not",
)
def _teach_replacements(patches: Patches) -> None:
    """Enter each function that was replaced under the operator of the stock one."""
    builtins: dict[int, str] = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    for _, stock, value in patches.replaced:
        operator = builtins.get(id(stock))
        if operator is not None and id(value) not in builtins:
            builtins[id(value)] = operator
            patches.then(functools.partial(builtins.__delitem__, id(value)))
