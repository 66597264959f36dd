"""Raw memory: the only folder that reads or writes addresses of this process.

ctypes, the layouts of C++ and CPython objects, tables of virtual functions, machine code. Each file
checks what it assumes before it writes, and says what happens where that does not hold.
May import: `simgpu._naming`, `_patches`, `_class_proxies`, `errors`.
"""
