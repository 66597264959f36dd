"""The parts of the pytest plugin: options, markers, pools of devices, repeated tests, tracebacks.

torch is imported when a test first needs it, not before.

May import: `simgpu`, `_explore/asynchronous`, `_explore/schedules`, `_core`, `_config`, `errors`,
`_strategies`, `_util`, `torch`, `hypothesis`, `pytest`.
"""
