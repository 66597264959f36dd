"""Planted faults: for each property, a small mistake in the library that it has to notice.

`plant` puts a mistake in, `faults` is the table, `test_planted_faults` runs it.
"""
