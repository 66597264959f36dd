"""Programs as their authors would write them for CUDA, and the tests that run them unmodified.

A program imports nothing of ours and names no device type but "cuda" and "cpu". What a test needs
of it, the program has as globals at its end.
"""
