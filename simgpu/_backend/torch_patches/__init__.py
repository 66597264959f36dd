"""Monkey patches of torch that stay: each file has a table of attributes, applied by `apply_all`.

docs/architecture.md, "Add a replacement of a torch attribute", says how to add one.

May import: `_backend/device_module`, `_kernels`, `_backend`, `_memory`, `_native`, `_runtime`,
`errors`, `_class_proxies`, `_naming`, `_patches`, `comm`, `torch`.
"""
