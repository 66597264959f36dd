"""Nested inputs and outputs: containers, packed sequences, the warning about scalars.

May import: `dataparallel._devices`.
"""
