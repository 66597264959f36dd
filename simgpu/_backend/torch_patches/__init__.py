"""Monkey patches of torch that stay: each file has a table of attributes (`PATCHES`).

docs/architecture.md, "Add a replacement of a torch attribute", says how to add one.

May import: `_backend/namespace`, `_ops`, `_backend`, `_memory`, `_core`, `_native`, `errors`,
`_util`, `comm`, `torch`.
"""
