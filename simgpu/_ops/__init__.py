"""Kernels of aten operators on simulated devices, by family.

table           what a row says about an operator; `registry.facts("median")` shows one
registry        registers a kernel for every operator: begin here
from_schema     kernels that are made from an operator's schema
rules, dtypes   what a row puts before a kernel
calls           one call: schema, arguments on the host, errors for wrong devices
attention, copies, elementwise, fourier, images, indexing, linalg, losses, norms,
products, random, reductions, rnn, sparse_and_nested
                the families: rows, checks, and kernels written by hand; kernels that change
                storages are in `simgpu._memory`
attention_kernels
                CUDA's fused kernels of attention, computed on the host
program_kernels operators for which a program has registered kernels
autocast        what torch.autocast casts

docs/architecture.md, "A kernel for a new operator", says where a new one goes.

May import: `_memory`, `_core`, `_native`, `errors`, `_random`, `_util`, `torch`, `torchgen`.
"""
