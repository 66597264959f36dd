"""The parts of the pytest plugin: its options, pools of devices, groups of GPUs, `--as-cuda`.

May import: `simgpu`, `simgpu._runtime` and `simgpu.errors`, when a test first needs them: torch is
not imported before that.
"""
