"""The threads that replicas run in, and what they inherit from the caller.

May import: torch, nothing else of dataparallel.
"""
