"""The parts of the pytest plugin: its options, pools of devices, groups of GPUs, `--as-cuda`,
`--faults`, `--schedules`, tracebacks.

torch is imported when a test first needs it, not before.

May import: `simgpu`, `_startup`, `_simulation/asynchronous`, `_simulation/schedules`, `_runtime`,
`_models`, `errors`, `_counting`, `_naming`, `_testing`, `torch`, `hypothesis`, `pytest`.
"""
