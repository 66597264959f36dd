"""PyTorch's own test files, run on simulated devices, and compared with what is expected of them.

    python -m tests.assurance.upstream --pytorch DIR --devices 3 [--ours] [FILE ...]

No test of PyTorch is kept here: DIR is a checkout of PyTorch, or a folder with its test files.
`expected.toml` says which of their tests fail, and why; anything else that fails, and anything of
it that passes, makes the command fail.
"""
