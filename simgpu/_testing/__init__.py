"""What the public strategies are built of: values, networks, the log of examples. Needs hypothesis.

May import: torch and hypothesis, nothing else of simgpu.
"""
