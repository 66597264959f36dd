"""Random calls of every operator, right and wrong ones: nothing may crash the interpreter.

`python -m tests.assurance.fuzz_operators`; `spoil` makes the arguments of a call wrong.
"""
