"""What `simgpu.strategies` is built of: values, random networks, the log of examples.

`error_text` and `node_ids` are for the pytest plugin and for fuzzing.

May import: `torch`.
"""
