"""torchao, or bitsandbytes: quantized layers, and optimizers whose state is quantized or paged.

Argument: which of the two libraries.
"""

import sys

import pytest
import torch
from torch import nn


def trained(kind, device):
    layer, x = nn.Linear(512, 256).to(device), torch.ones(4, 512, device=device)
    optimizer = kind(layer.parameters())
    for _ in range(2):
        layer(x).square().mean().backward()
        optimizer.step()
    return layer.weight


if sys.argv[1] == "torchao":
    from torchao import optim, quantization

    def quantized(name):
        layer = nn.Linear(64, 64).half()
        quantization.quantize_(layer, getattr(quantization, f"{name}Config")())
        return layer

    optimizers = "AdamW4bit", "AdamW8bit", "AdamWFp8"
    kinds = "Float8WeightOnly", "Int8DynamicActivationInt8Weight", "IntxWeightOnly"
else:
    import bitsandbytes
    from bitsandbytes import optim

    def quantized(name):
        return getattr(bitsandbytes.nn, name)(64, 64).half()

    optimizers = "AdamW8bit", "PagedAdamW8bit", "PagedLion32bit"
    kinds = "LinearNF4", "LinearFP4", "Linear8bitLt"
    # Replicas lack what it keeps beside a parameter, on GPUs too.
    with pytest.raises(RuntimeError, match="absmax is on cuda:0"):
        nn.DataParallel(quantized("LinearNF4").cuda())(torch.ones(2, 64).half())

for name in (*kinds, *optimizers):
    made = []
    for device in ("cpu", "cuda:1"):
        torch.manual_seed(0)
        if name in kinds:
            x = torch.ones(4, 64, dtype=torch.half, device=device)
            made.append(quantized(name).to(device)(x).cpu())
        else:
            made.append(trained(getattr(optim, name), device).cpu())
    rounding = torch.finfo(made[0].dtype).eps
    assert torch.allclose(*made, rtol=rounding, atol=rounding), name
print("{}")
