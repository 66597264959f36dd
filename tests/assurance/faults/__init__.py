"""Planted faults: small mistakes in both packages, each with the test that has to notice it.

    python -m pytest tests/assurance/faults

A row of `in_*.py` is an example of a kind of mistake: one that `mutants` do not make by rule, or in
a package whose mutants are not made each night, or in a file of `dataparallel`, where each file and
each synchronisation has a row. `tests/support/plant.py` says how a row names the function, the edit
of its syntax tree, and the test; a row whose function, edit or test is not there any more fails.
"""
