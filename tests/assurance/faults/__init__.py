"""Planted faults: small mistakes in both packages, each with the test that has to notice it.

    python -m pytest tests/assurance/faults

A row of `in_*.py` stands for a whole kind of mistake. `tests/support/plant.py` says how a row names
the function, the edit of its syntax tree, and the test; a row whose function, edit or test is not
there any more fails.
"""
