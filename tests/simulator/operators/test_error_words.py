"""PyTorch's errors have the words that they are recognised by."""

import inspect
from functools import partial

import pytest
import torch
from torch import distributed as dist

from simgpu._core import operators

_library = torch.library.Library("simgpu_test", "FRAGMENT")
_library.define("nothing.overload(Tensor x) -> Tensor")
NOTHING = torch.ops.simgpu_test.nothing.overload


def begin_twice():
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


RAISING = {
    "wants_to_resize": lambda: torch.add(torch.ones(3), 1, out=torch.from_dlpack(torch.ones(1))),
    "found_no_room": lambda: torch.empty(2**60, dtype=torch.uint8),
    "found_no_kernel": lambda: NOTHING(torch.ones(1)),
    "refused_dtype": lambda: torch.kthvalue(torch.ones(2, dtype=torch.bool), 1),
    "began_twice": begin_twice,
}
QUESTIONS = {
    name: partial(function, op=NOTHING) if name == "found_no_kernel" else function
    for name, function in inspect.getmembers(operators, inspect.isfunction)
    if "error" in inspect.signature(function).parameters
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_an_error_is_known_by_its_words(name):
    with pytest.raises((RuntimeError, ValueError)) as raised:
        RAISING[name]()
    if dist.is_initialized():
        dist.destroy_process_group()
    assert [asked for asked, holds in QUESTIONS.items() if holds(raised.value)] == [name]
