"""What may go otherwise on a machine: failures, the order of threads and of streams, and time.

failures        `simgpu.faults` and `simgpu.sweep`: failures on purpose
schedules       `simgpu.schedule`: which thread runs when
asynchronous    `simgpu.asynchronous`: kernels and copies that run when they are waited for
races           `simgpu.races`: accesses to the same memory in no order
timing          `simgpu.clock`: estimated time

The files here are used by several of them: `collector` stops Python's garbage collector, `state`
puts back what a training step changed. All of it watches and steers as instruments do
(`simgpu._runtime.instruments`). Nothing of torch is replaced for it; `schedules` replaces locks,
threads and time of Python.

May import: `_runtime`, `torch`, `numpy`.
"""
