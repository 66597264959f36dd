"""Kernels of LSTM and GRU cells, which PyTorch fuses on devices and the CPU does not have.

The CPU has no such kernels, so they are computed here with the host's elementwise operators, by
the equations of torch.nn.LSTMCell and torch.nn.GRUCell. The workspace holds what the forward pass
hands to its backward pass, and nobody else reads it.
"""

from __future__ import annotations

import torch

from simgpu._kernels.general import computed_kernel
from simgpu._kernels.overloads import overload

Tensor = torch.Tensor


def _with_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _lstm(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """New hidden state, new cell state, and the activated gates for the backward pass."""
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    in_, forget, cell, out = gates.chunk(4, 1)
    in_, forget, cell, out = in_.sigmoid(), forget.sigmoid(), cell.tanh(), out.sigmoid()
    cy = forget * cx + in_ * cell
    return out * cy.tanh(), cy, torch.cat((in_, forget, cell, out), 1)


def _lstm_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the gates (of both biases too, which are added to them) and of `cx`."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    in_, forget, cell, out = workspace.chunk(4, 1)
    grad_hy = torch.zeros_like(cx) if grad_hy is None else grad_hy
    tanh_cy = cy.tanh()
    grad_cell_state = grad_hy * out * (1 - tanh_cy * tanh_cy)
    if grad_cy is not None:
        grad_cell_state = grad_cell_state + grad_cy
    grad_gates = torch.cat(
        (
            grad_cell_state * cell * in_ * (1 - in_),
            grad_cell_state * cx * forget * (1 - forget),
            grad_cell_state * in_ * (1 - cell * cell),
            grad_hy * tanh_cy * out * (1 - out),
        ),
        1,
    )
    return grad_gates, grad_cell_state * forget, grad_gates.sum(0) if has_bias else None


def _gru(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """New hidden state, and what the backward pass needs: reset, update, new, hx, hidden new."""
    input_reset, input_update, input_new = _with_bias(input_gates, input_bias).chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = _with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return (hx - new) * update + new, torch.cat((reset, update, new, hx, hidden_new), 1)


def _gru_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of the input gates, the hidden gates, `hx` and both biases."""
    reset, update, new, hx, hidden_new = workspace.chunk(5, 1)
    grad_update = grad_hy * (hx - new) * update * (1 - update)
    grad_new = grad_hy * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    grad_input = torch.cat((grad_reset, grad_update, grad_new), 1)
    grad_hidden = torch.cat((grad_reset, grad_update, grad_new * reset), 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hy * update, *biases


gru_cell = computed_kernel(overload("_thnn_fused_gru_cell"), _gru)
gru_cell_backward = computed_kernel(overload("_thnn_fused_gru_cell_backward"), _gru_backward)
lstm_cell = computed_kernel(overload("_thnn_fused_lstm_cell"), _lstm)
lstm_cell_backward = computed_kernel(
    overload("_thnn_fused_lstm_cell_backward_impl"), _lstm_backward
)
