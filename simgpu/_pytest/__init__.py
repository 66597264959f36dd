"""The parts of the pytest plugin: its options, pools of devices, groups of GPUs, `--as-cuda`.

May import: `simgpu`, `_runtime` and `errors`, when a test first needs them; nothing here imports
torch before that.
"""
