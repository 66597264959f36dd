"""Monkey patches of torch that stay: each file has a table of attributes (`PATCHES`).

tensors, storages, streams, serialization, autograd, collectives, compile
                what they patch
routing         ours for simulated tensors, the stock function for others
beside_cuda     where there are GPUs too
silent_bugs     warnings that only a simulator can give
tracebacks      without the frames of simgpu

docs/architecture.md, "Add a replacement of a torch attribute", says how to add one.

May import: `_backend/namespace`, `_ops`, `_backend`, `_memory`, `_core`, `_native`, `errors`,
`_util`, `comm`, `torch`.
"""
