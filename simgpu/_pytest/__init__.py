"""The parts of the pytest plugin: pools of devices, groups of GPUs, `--as-cuda`.

May import: simgpu, when a test first needs it.
"""
