"""What `simgpu.strategies` is built of: values, random networks, the log of examples.

May import: `torch`.
"""
