"""`simgpu.races`: accesses to one piece of memory that nothing puts in order, by happens-before.

On a GPU, the kernels of one stream run one after the other, and those of two streams in any order
unless something makes one wait for the other: an event, `wait_stream`, a synchronization of the
host, a copy between devices. `order` follows this by vector clocks, `accesses` says what an
operator reads and writes, `regions` remembers who touched which bytes last, and `detector` puts the
three together for every launch. `host` does so for what the CPU's operators do to pinned memory.

May import: `_runtime`, `_naming`, `torch`.
"""
