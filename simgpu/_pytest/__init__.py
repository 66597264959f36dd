"""The parts of the pytest plugin: its options, pools of devices, groups of GPUs, `--as-cuda`.

May import: simgpu, when a test first needs it. Nothing here imports torch before that.
"""
