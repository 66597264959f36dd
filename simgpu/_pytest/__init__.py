"""The parts of the pytest plugin: its options, pools of devices, groups of GPUs, `--as-cuda`.

May import: `simgpu` and `simgpu.errors`, when a test first needs them. Nothing here imports torch
before that.
"""
