"""What may happen otherwise on a real machine: failures, orders of threads, late kernels, races.

faults          `simgpu.faults` and `simgpu.sweep`: failures on purpose
schedules       `simgpu.schedule`: which thread runs when
asynchronous    `simgpu.asynchronous`: kernels and copies that run when they are waited for
races           `simgpu.races`: accesses to the same memory in no order
training_state  the state of a training step, saved and put back

The four folders do not import each other. They watch and steer through `simgpu._core.hooks`;
nothing of torch is replaced for them; `schedules` replaces locks, threads and time of Python.

May import: `_core`, `torch`, `numpy`.
"""
