"""What a replica is made of, and the parameters that are kept between calls.

May import: `dataparallel._transfer`, `_structure`, `_devices`.
"""
