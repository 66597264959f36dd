"""Kernels of aten operators on simulated devices, by family.

registry            which operator gets which kernel: begin here
from_schema         kernels that are made from an operator's schema
table, checks       checks before kernels that would crash or read past memory
dtypes              dtypes that CUDA lacks, and dtypes that the CPU lacks
calls               one call: schema, arguments on the host, errors for wrong devices
copies, indexing, dropout, attention, rnn, batch_norm, normalization, products,
fake_quantization, linalg, random, sparse_and_nested
                    kernels written by hand; those that change storages are in `simgpu._memory`
autocast            what torch.autocast casts

docs/architecture.md, "A kernel for a new operator", says where a new one goes.

May import: `_memory`, `_core`, `_native`, `errors`, `_random`, `_util`, `torch`, `torchgen`.
"""
