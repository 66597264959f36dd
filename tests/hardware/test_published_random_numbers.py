"""Random numbers that people printed on real GPUs come out on simulated devices, digit by digit.

published_random_numbers.json has the source of each. Where a seed was not written in the source but
inferred from the values, it says so; so it does where the GPU was fitted.
"""

import json
import math
import re
from pathlib import Path

import pytest
import torch

import simgpu

ITEMS = json.loads((Path(__file__).parent / "published_random_numbers.json").read_text("utf-8"))[
    "random_numbers"
]
OLD_DROPOUT = "Dropout(.5)(ones(1000,1000)).abs().sum()"
# By what the source calls its GPU; a source without one printed what every GPU draws.
GPUS = {
    "RTX A4000": ["RTX A4000"],
    "P100": ["P100"],
    "K80": ["K80"],
    "RTX 3060": ["RTX 3060"],
    "": [None, "T4", "A100", "H100"],
}


def models(item):
    gpu = item.get("gpu", "")
    return next(names for text, names in GPUS.items() if gpu.startswith(text))


def drawn(call, device):
    """What one of the calls in a source gives on `device`."""
    if call.startswith("nn.Linear"):
        with device:
            linear = torch.nn.Linear(1, 1)
        return torch.cat([linear.weight.flatten(), linear.bias]).detach()
    if call.startswith("normal_"):
        return torch.empty(1000, 100, device=device).normal_(5, 5**0.5)
    name, arguments = re.fullmatch(r"(rand|randn|randint)\((.*)\)", call).groups()
    numbers = [int(number) for number in re.findall(r"\d+", arguments)]
    if name == "randint":
        return torch.randint(*numbers[:2], numbers[2:], device=device)
    return getattr(torch, name)(*numbers, device=device)


def printed(item, tensor):
    """The part of a tensor that the source shows."""
    part = item["printed"]
    if not part.startswith("rows"):
        return tensor
    rows = [
        int(row)
        for row in re.search(r"rows ([-\d,]+)", part.replace("rows and columns", "rows"))[1].split(
            ","
        )
    ]
    return tensor.view(item["shape"])[rows][:, [0, 1, 2, -3, -2, -1]]


# What takes seconds to draw is replayed once, in tests/recordings/published.
CASES = [(item, model) for item in ITEMS if item["id"] != "R21" for model in models(item)]


@pytest.mark.parametrize(
    ("item", "model"), CASES, ids=[f"{item['id']}-{model}" for item, model in CASES]
)
def test_a_published_draw(item, model):
    with simgpu.devices(1, model=model) as (device,):
        torch.manual_seed(item["seed"])
        if item["draws"] == [OLD_DROPOUT]:
            # The kernel of torch 1.2 spread elements over threads as all other draws are. It is
            # that of today for tensors that are not dense.
            spread = torch.ones(1000, 1000, 2, device=device)[..., 0]
            answer = torch.nn.functional.dropout(spread, 0.5).abs().sum()
        else:
            *_, answer = [drawn(call, device) for call in item["draws"]]
        found = printed(item, answer).flatten().tolist()
    expected = torch.tensor(item["values"], dtype=torch.float64).flatten().tolist()
    assert len(found) == len(expected) == math.prod(torch.tensor(item["values"]).shape)
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other) <= 0.5e-4 + 1e-6, (one, other)
