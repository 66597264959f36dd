"""Which devices a program asks for: memory, models of GPUs, random numbers. Needs no torch.

gpus            models of GPUs; `gpus.json` has a row for each, with its source
options         memory sizes, kinds of random numbers, environment variables

May import: `_util`.
"""
