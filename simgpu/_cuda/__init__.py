"""Simulated devices by the name of CUDA: tables of replaced attributes, which are all put back.

May import: `simgpu._backend` and below.
"""
