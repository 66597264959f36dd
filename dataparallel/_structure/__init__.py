"""Nested inputs and outputs (pytrees, packed sequences) taken apart and built again.

No tensor is moved here, but for the rows of a PackedSequence.

May import: `_devices`, `torch`.
"""
