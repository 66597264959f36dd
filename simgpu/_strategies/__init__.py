"""Parts of `simgpu.strategies`: values, random networks, the log of examples.

examples        one example: what it is about, its errors, how it is run again
networks        random small networks, and values for tensors

May import: `torch`.
"""
