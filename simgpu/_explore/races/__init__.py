"""`simgpu.races`: accesses to one piece of memory that nothing puts in order.

On a GPU, the kernels of one stream run one after the other, and those of two streams in any order
unless something makes one wait for the other: an event, `wait_stream`, a synchronization of the
host, a copy between devices. `simgpu._core.order` follows this by vector clocks.

accesses        what an operator reads and writes; the text of a race
detector        which work used which bytes last; the check of every launch
host            operators of the CPU that use pinned memory

May import: `_core`, `_util`, `torch`.
"""
