"""What `simgpu.strategies` is built of: values, random networks, the log of examples.

`error_text` is for the pytest plugin and for fuzzing.

May import: `torch`.
"""
