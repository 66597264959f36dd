"""The parts of the pytest plugin: its options, pools of devices, groups of GPUs, `--as-cuda`,
`--faults`.

torch is imported when a test first needs it, not before.

May import: `simgpu`, `_startup`, `_runtime`, `_models`, `errors`, `_naming`, `torch`, `pytest`.
"""
