"""What each operator does on a simulated device, and which operator gets which kernel.

registry            the table: begin here
from_schema         kernels made from an operator's schema, by `schema`, `elementwise`, `general`,
                    `factories`, `random`, `foreach` and `outputs`
copies, indexing, dropout, attention, rnn_cells     kernels written by hand
sparse_and_nested   tensors made of other tensors; `sparse_invariants` checks their indices
arguments           from device tensors to host tensors; `mixed_devices` says what CUDA refuses, in
                    words for which `native_functions` reads PyTorch's operator table
argument_checks     errors in place of crashes of the host's kernels, found by `index_checks` and
                    `shape_checks`
unsupported         operators that are refused
autocast            automatic mixed precision, by the lists in `autocast_policy`
overloads           operators by name, and how kernels are registered

May import: `_memory`, `_runtime`, `_native`, `errors`, `_naming`, `torch`, `torchgen`.
"""
