"""Planted faults: small mistakes in the library, each with the property that has to notice it.

`plant` puts a mistake in, `faults` is the table, `test_planted_faults` runs it.
"""
