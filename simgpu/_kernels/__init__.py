"""Kernels of aten operators on simulated devices, and the table of which operator gets which.

registry            the table: begin here
from_schema         kernels made from an operator's schema, by `schema`, `elementwise`, `general`,
                    `factories`, `random`, `foreach` and `outputs`
copies, indexing, dropout, attention, rnn_cells, rnn_layers, storage_identity,
sync_batch_norm, cudnn_convolutions, products_out_dtype
                    kernels written by hand; those that change storages are in `simgpu._memory`
sparse_and_nested   tensors made of other tensors; `sparse_invariants` checks their indices, and
                    `sparse_sums` adds them
arguments           from device tensors to host tensors; `mixed_devices` says what CUDA refuses, in
                    words for which `native_functions` reads PyTorch's operator table
argument_checks     errors in place of crashes of the host's kernels, found by `index_checks` and
                    `shape_checks`; `solvers` has those of linear algebra, and what computes there
dtype_rules         dtypes that CUDA's kernels lack, refused in their words; `wider_dtypes` has
                    those that the CPU's lack, `batch_norm` mixtures of them
determinism         kernels that CUDA refuses under `torch.use_deterministic_algorithms`
forward_ad          the device of a tangent in forward-mode AD
unsupported         operators that are refused
recorded            operators of which a trace records the parts
autocast            automatic mixed precision, by the lists in `autocast_policy`; for scripts in
                    `scripted_autocast`
overloads           operators by name, and how kernels are registered

May import: `_memory`, `_native`, `_runtime`, `errors`, `_naming`, `_random`, `torch`, `torchgen`.
"""
