"""Runs a program that nobody edited as `python program arguments` does, and prints its losses.

    python -m torch.distributed.run ... losses.py program arguments

Each tensor whose `backward()` is called is a loss: `loss of rank 0: 1.25`. The seed is 0, since the
programs that are run so do not set one themselves.
"""

import os
import runpy
import sys

import torch

stock = torch.Tensor.backward


def backward(self, *args, **kwargs):
    value = self.full_tensor() if hasattr(self, "full_tensor") else self
    print(f"loss of rank {os.environ['RANK']}: {value.item()!r}", flush=True)
    return stock(self, *args, **kwargs)


def to_empty(self, **named):
    """Fresh memory of a GPU has zeros, and the Transformer of FSDP2 does not reset its layers."""
    stock_to_empty(self, **named)
    with torch.no_grad():
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.zero_()
    return self


torch.Tensor.backward = backward
stock_to_empty, torch.nn.Module.to_empty = torch.nn.Module.to_empty, to_empty
torch.manual_seed(0)
program, *sys.argv[1:] = sys.argv[1:]
sys.argv[0] = program
sys.path[0] = os.path.dirname(os.path.abspath(program))
runpy.run_path(program, run_name="__main__")
