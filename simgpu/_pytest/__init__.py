"""The parts of the pytest plugin: its options, pools of devices, groups of GPUs, `--as-cuda`,
`--faults`, `--schedules`, tracebacks.

torch is imported when a test first needs it, not before.

May import: `simgpu`, `_simulation/asynchronous`, `_simulation/schedules`, `_startup`, `_runtime`,
`_models`, `_testing`, `errors`, `_naming`, `torch`, `hypothesis`, `pytest`.
"""
