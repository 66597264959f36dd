"""`simgpu.faults` and `simgpu.sweep`: failures on purpose, and what a program makes of them.

faults          the context manager: one allocation, kernel or copy fails, or a device is lost
lost_devices    which devices are lost, and the error of every later use
bits            one wrong bit in what a kernel wrote
causes          the failure that was put in, in the error that a program made of it
sweep           runs a step once for each failure that it could meet
report          what `sweep` returns

May import: `_simulation`, `_runtime`, `errors`, `_counting`, `_naming`, `torch`.
"""
