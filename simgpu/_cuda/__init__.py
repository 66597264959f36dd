"""Simulated devices by the name of CUDA, for code written for it; all of it can be undone.

May import: `simgpu._backend` and below.
"""
