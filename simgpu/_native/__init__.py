"""Raw memory: the only folder that reads or writes addresses of this process.

ctypes, the layouts of C++ and CPython objects, tables of virtual functions, machine code. Each file
checks what it assumes before it writes, and falls back or raises UnsupportedError where that does
not hold; "Native tricks" in docs/architecture.md has a row for each, and `status` says which work
in this process. May import: `simgpu._naming`, `_patches`, `_class_proxies`, `errors`.
"""
