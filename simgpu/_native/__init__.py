"""Code that reads and writes C++ and CPython objects in memory, which no other folder may do.

ctypes, the layouts of C++ objects, tables of virtual functions, machine code. Each file checks what
it assumes before it writes, and falls back or raises UnsupportedError where that does not hold.
"Native tricks" in docs/architecture.md has a row for each; `status` says which work here.

May import: `errors`, `_naming`, `torch`, `ctypes`, `mmap`.
"""
