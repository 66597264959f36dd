"""Failures on purpose: out of memory, failed kernels and copies, lost devices, flipped bits.

`simgpu.faults` makes one of them happen, `simgpu.sweep` each of them in turn. They are instruments
(`simgpu._runtime.instruments`); nothing of torch is replaced for them. The order of threads is in
`schedules`, that of streams in `asynchronous`, accesses in no order in `races`, and estimated time
in `timing`.

May import: `_runtime`, `errors`, `_naming`, `torch`, `numpy`.
"""
