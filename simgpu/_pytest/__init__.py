"""The parts of the pytest plugin: its options, pools of devices, groups of GPUs, `--as-cuda`.

May import: `simgpu`, `_startup`, `_runtime`, `_naming` and `errors`; torch, and whatever imports
it, only when a test first needs it.
"""
