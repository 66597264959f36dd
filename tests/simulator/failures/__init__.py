"""Failures on purpose: what `simgpu.faults` and `simgpu.sweep` do, and what is left after them."""
