"""Nested inputs and outputs: taking containers and packed sequences apart and building them again.

No tensor is moved here, but for the rows of a PackedSequence.

May import: `_devices`, `torch`.
"""
