"""Building the replicas of a module, and keeping their parameters between calls.

`plan` says what a module consists of and builds replicas from it; `parameter_cache` knows which
parameters have to be sent again.

May import: `_transfer`, `torch`.
"""
