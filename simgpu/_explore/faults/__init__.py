"""`simgpu.faults` and `simgpu.sweep`: failures on purpose, and what a program makes of them.

faults          the context manager: one allocation, kernel or copy fails, or a device is lost
sweep           runs a step once for each failure that it could meet, and reports

May import: `_explore`, `_core`, `errors`, `_util`, `torch`.
"""
