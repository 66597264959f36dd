"""LSTM, GRU and RNN: whole layers as CUDA has them from cuDNN, and fused cells.

PyTorch's own code for these layers asks C++ whether the device has cuDNN, and takes some ten
kernels for every time step where it has not. Here the host's layer runs as one kernel, with an
autograd graph of its own on the host; the backward kernel runs through that graph. As with cuDNN

- a second derivative is refused, and so is the backward pass of a layer in eval mode;
  `torch.backends.cudnn.flags(enabled=False)` is the way out;
- inputs and outputs may not be modified before the backward pass;
- what the forward pass keeps for the backward pass takes memory of the device.

Under autocast the layer runs in float16, also where autocast's dtype is bfloat16, as CUDA's
`_cudnn_rnn` does (aten/src/ATen/cudnn/AutocastRNN.cpp; an H200 too). Step by step, by PyTorch's own
code, are computed: transforms (torch.func), forward-mode AD, tensors that do not fit
together (whose errors are PyTorch's), and layers where cuDNN is off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

from simgpu._core import world
from simgpu._core.launch import HOST_KEYS, Kernel, launch
from simgpu._core.out_of_memory import raise_out_of_memory
from simgpu._memory.ownership import adopt
from simgpu._native.relabel import host_alias
from simgpu._ops import autocast
from simgpu._ops.calls import overload, schema_of
from simgpu._ops.from_schema import Call, computed_by_name
from simgpu._ops.rules import checked_composite, reads_values
from simgpu._ops.table import Keys, row
from simgpu._util.naming import DEVICE_TYPE

Tensor = torch.Tensor
_aten = torch.ops.aten
# Whether the backward pass that runs now was asked to keep its graph.
_keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph

_WAY_OUT = "run the forward pass within `torch.backends.cudnn.flags(enabled=False)`"


def _host_backward(_: Keys, outputs: Any, inputs: Any, grads: Any, keep: bool) -> Any:
    return torch.autograd.grad(outputs, inputs, grads, retain_graph=keep, allow_unused=True)


_GRADIENTS = Kernel(_aten._cudnn_rnn_backward.default, _host_backward)


class _Layout:
    """Which arguments of a call are tensors of the device, so that others can take their places.

    The sizes of a packed batch are a tensor too, which stays on the CPU.
    """

    def __init__(self, op: torch._ops.OpOverload, arguments: Sequence[Any]) -> None:
        self.graph = False  # whether the host keeps a graph of the call
        self.trains = True
        self._leaves, self._spec = tree_flatten([*arguments])
        given = zip(schema_of(op).names, arguments, strict=True)
        sizes = next((value for name, value in given if name == "batch_sizes"), None)
        self.tensors: list[Tensor] = []
        self._places = []
        for place, leaf in enumerate(self._leaves):
            if isinstance(leaf, Tensor) and leaf is not sizes:
                self.tensors.append(leaf)
                self._places.append(place)

    def arguments(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The arguments of the call with these tensors in place of its own."""
        leaves = [*self._leaves]
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self._spec)  # type: ignore[no-any-return]


def _computed(
    kernel: Kernel, layout: _Layout, tensors: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[list[Tensor], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs on the host, the results there, and those of the device.

    `wanted` says which inputs want a gradient.
    """
    index = tensors[0].get_device()
    hosts = [host_alias(x).requires_grad_(wants) for x, wants in zip(tensors, wanted, strict=True)]
    results = launch(kernel, index, (hosts, layout), {})
    return hosts, results, tuple(adopt(_fresh(result), index) for result in results)


class _Layer(torch.autograd.Function):
    """One layer, or a stack of layers without dropout between them."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, layout: _Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        layout.graph = any(ctx.needs_input_grad[2:])
        hosts, results, owned = _computed(kernel, layout, tensors, ctx.needs_input_grad[2:])
        ctx.trains = layout.trains
        ctx.kept = _Kept(tensors[0].get_device(), hosts, results)
        ctx.save_for_backward(*tensors, *owned)
        ctx.set_materialize_grads(False)
        return owned

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is "
                f"not supported for recurrent layers in one kernel, as with cuDNN: {_WAY_OUT}"
            )
        if not ctx.trains:
            raise RuntimeError(
                "cudnn RNN backward can only be called in training mode, and the layer was in eval "
                f"mode: call .train() on it (dropout may stay off), or {_WAY_OUT}"
            )
        ctx.saved_tensors  # noqa: B018  # raises if the graph is gone or a tensor was modified
        kept: _Kept = ctx.kept
        keep = _keeps_graph()
        given = [
            (out, grad)
            for out, grad in zip(kept.outputs, grads, strict=True)
            if grad is not None and out.requires_grad
        ]
        wanted = [host for host in kept.inputs if host.requires_grad]
        arguments = [out for out, _ in given], wanted, [host_alias(g) for _, g in given], keep
        found = iter(launch(_GRADIENTS, kept.index, arguments, {}))
        if not keep:
            del ctx.kept
        answers: list[Tensor | None] = []
        for host in kept.inputs:
            grad = next(found) if host.requires_grad else None
            answers.append(None if grad is None else adopt(_fresh(grad), kept.index))
        return None, None, *answers


# Programs that look at a graph find the name that it has on CUDA.
_Layer._backward_cls.__name__ = "CudnnRnnBackward0"


class _Kept:
    """The host's graph of one forward pass, and the device memory counted for it."""

    def __init__(self, index: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.index, self.inputs, self.outputs = index, inputs, outputs
        # cuDNN's reserve: the activations of all steps, about what the outputs take for each gate.
        nbytes = (4 * sum(output.nbytes for output in outputs) + 511) & -512
        device = world.device(index)
        self.reserve = device.allocate(nbytes)
        if self.reserve is None:
            raise_out_of_memory(device, nbytes)


def _fresh(result: Tensor) -> Tensor:
    """A tensor without history over memory of its own, for a device to own."""
    result = result.detach()
    whole = result.untyped_storage().nbytes() == result.nbytes
    return result if whole and result.is_contiguous() else result.clone()


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether the tensors are on one device and of one dtype, with nothing special going on."""
    first = tensors[0]
    return (
        torch.backends.cudnn.enabled
        and first.is_floating_point()
        and all(t.device == first.device and t.dtype == first.dtype for t in tensors)
        and not torch._C._functorch.maybe_current_level()
        and forward_ad._current_level < 0
    )


def _check_states(given: Tensor | Sequence[Tensor], input: Tensor) -> None:
    """cuDNN takes the first states as they are in memory (aten/src/ATen/native/cudnn/RNN.cpp)."""
    states = given if isinstance(given, (list, tuple)) else (given,)
    for name, state in zip(("hx", "cx"), states, strict=False):
        if not state.is_contiguous() and input.numel():
            raise RuntimeError(
                f"rnn: {name} is not contiguous: its shape is {tuple(state.shape)} and its strides "
                f"are {state.stride()}; call .contiguous() on it first"
            )


def _layer_kernel(op: torch._ops.OpOverload) -> Callable[..., Any]:
    step_by_step = op._handle.redispatch_boxed
    names = schema_of(op).names

    def on_host(_: Keys, tensors: Sequence[Tensor], layout: _Layout) -> tuple[Tensor, ...]:
        # Without a graph, tensors still want gradients: the host chooses products by it.
        with torch.set_grad_enabled(layout.graph):
            return tuple(op(*layout.arguments(tensors)))

    kernel = Kernel(op, on_host)

    def run(keys: Keys, *args: Any, **kwargs: Any) -> Any:
        arguments = [*args, *(kwargs[name] for name in names[len(args) :])]
        if torch.backends.cudnn.enabled and torch.is_autocast_enabled(DEVICE_TYPE):
            with autocast.switched_off():
                return compute(autocast.as_half(arguments))
        return compute(arguments)

    def compute(arguments: list[Any]) -> Any:
        layout = _Layout(op, arguments)
        if not _is_plain(layout.tensors):
            return step_by_step(HOST_KEYS, *arguments)
        call = dict(zip(names, arguments, strict=True))
        _check_states(call["hx"], layout.tensors[0])
        layout.trains = call["train"]
        if call["train"] and call["dropout"] and call["num_layers"] > 1:
            return _with_dropout(op, call)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in layout.tensors):
            return _Layer.apply(kernel, layout, *layout.tensors)  # type: ignore[no-untyped-call]
        wanted = [tensor.requires_grad for tensor in layout.tensors]
        return _computed(kernel, layout, layout.tensors, wanted)[2]

    return run


def _with_dropout(op: torch._ops.OpOverload, call: dict[str, Any]) -> tuple[Tensor, ...]:
    """The layers one by one, with dropout from the device's generator between them."""
    layers, directions = call["num_layers"], 1 + call["bidirectional"]
    weights = len(call["params"]) // layers
    states = call["hx"] if isinstance(call["hx"], (list, tuple)) else [call["hx"]]
    first = next(iter(call))  # "input" or "data"
    params, dropout = call.pop("params"), call["dropout"]
    ends = []
    for layer in range(layers):
        own = [state[layer * directions : (layer + 1) * directions] for state in states]
        call |= {"hx": own if len(own) > 1 else own[0], "num_layers": 1, "dropout": 0.0}
        part = params[layer * weights : (layer + 1) * weights]
        output, *end = op(**call, params=part)
        ends.append(end)
        last = layer == layers - 1
        call[first] = output if last else torch.dropout(output, dropout, train=True)
    return output, *(torch.cat(parts) for parts in zip(*ends, strict=True))


for _layer in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    for _given in ("input", "data"):
        row(
            f"{_layer}.{_given}",
            above_autograd=_layer_kernel(getattr(getattr(_aten, _layer), _given)),
        )


@reads_values
def packed_sequence(arguments: dict[str, Any]) -> None:
    """Batch sizes never rise, and add up to the rows of data; the operator counts by them."""
    rows = arguments["data"].shape[0]
    sizes = host_alias(arguments["batch_sizes"])
    inside = (sizes >= 0) & (sizes <= rows)
    falls = sizes.dim() == 1 and bool(inside.all() & (sizes.diff() <= 0).all())
    if not falls or int(sizes.sum()) != rows:
        raise RuntimeError(
            f"batch_sizes of a packed sequence of {rows} rows must fall, and add up to that, got "
            f"{sizes.tolist()}"
        )


row(
    "_pad_packed_sequence",
    above_autograd=checked_composite(overload("_pad_packed_sequence")),
    checks=(packed_sequence,),
)
# Its lengths and batch sizes stay on the host.
row("_pack_padded_sequence", kind="pytorch")


# Kernels of LSTM and GRU cells, which PyTorch fuses on devices and the CPU does not have.
#
# They are computed here with the host's elementwise operators, by the equations of
# torch.nn.LSTMCell and torch.nn.GRUCell. The workspace holds what the forward pass hands to its
# backward pass, and nothing else reads it: the gates, to which PyTorch's own code for a second
# derivative applies the first one.

_lstm_gradients = _aten._thnn_differentiable_lstm_cell_backward
_gru_gradients = _aten._thnn_differentiable_gru_cell_backward


def _with_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _lstm(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """New hidden state, new cell state, and the gates."""
    gates = _with_bias(call.input_gates, call.input_bias)
    gates = gates + _with_bias(call.hidden_gates, call.hidden_bias)
    in_, forget, cell, out = gates.chunk(4, 1)
    cy = forget.sigmoid() * call.cx + in_.sigmoid() * cell.tanh()
    return out.sigmoid() * cy.tanh(), cy, gates


def _lstm_backward(call: Call) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the gates (of both biases too, which are added to them) and of `cx`."""
    if call.grad_hy is None and call.grad_cy is None:
        return None, None, None
    given = call.workspace, torch.zeros_like(call.workspace), None, None, call.cx, call.cy
    of_gates, _, of_cx, *_ = _lstm_gradients(call.grad_hy, call.grad_cy, *given)
    return of_gates, of_cx, of_gates.sum(0) if call.has_bias else None


def _gru(call: Call) -> tuple[Tensor, Tensor]:
    """New hidden state, and the gates: reset, update, new, hx, hidden new."""
    *inputs, input_new = _with_bias(call.input_gates, call.input_bias).chunk(3, 1)
    *hidden, hidden_new = _with_bias(call.hidden_gates, call.hidden_bias).chunk(3, 1)
    both = torch.cat(inputs, 1) + torch.cat(hidden, 1)
    reset, update = both.sigmoid().chunk(2, 1)
    new = (input_new + reset * hidden_new).tanh()
    return (call.hx - new) * update + new, torch.cat((both, input_new, call.hx, hidden_new), 1)


def _gru_backward(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of the input gates, the hidden gates, `hx` and both biases."""
    reset, update, new, hx, hidden_new = call.workspace.chunk(5, 1)
    gates = torch.cat((reset, update, new), 1)
    hidden = torch.constant_pad_nd(hidden_new, [2 * hx.shape[1], 0])
    of_input, of_hidden, of_hx, *_ = _gru_gradients(call.grad_hy, gates, hidden, hx, None, None)
    biases = (of_input.sum(0), of_hidden.sum(0)) if call.has_bias else (None, None)
    return of_input, of_hidden, of_hx, *biases


row("_thnn_fused_gru_cell", make=computed_by_name(_gru))
row("_thnn_fused_gru_cell_backward", make=computed_by_name(_gru_backward))
row("_thnn_fused_lstm_cell", make=computed_by_name(_lstm))
row("_thnn_fused_lstm_cell_backward_impl", make=computed_by_name(_lstm_backward))
