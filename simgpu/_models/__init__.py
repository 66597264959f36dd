"""Models of GPUs: what a simulated device says of itself when it is told to be an A100.

`gpus.json` has a row for each, with its source; `gpus` reads it, and finds what a program names.

May import: `_counting`.
"""
