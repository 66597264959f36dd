"""Planted faults: small mistakes in the library, each with the property that has to notice it.

`faults` is the table, `test_planted_faults` runs it, `tests/support/plant.py` puts a mistake in.
"""
