"""Exported programs on devices that go by the name of CUDA, and what exporting them asks for."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.meta_utils import no_dispatch

FACTORIES = {
    "empty": lambda device: torch.empty(2, 3, device=device),
    "empty_strided": lambda device: torch.empty_strided((2, 3), (1, 2), device=device),
    "ones": lambda device: torch.ones(2, device=device),
    "triu_indices": lambda device: torch.triu_indices(2, 3, device=device),
    "tril_indices": lambda device: torch.tril_indices(2, 3, device=device),
    "sparse": lambda device: torch.empty(2, 3, layout=torch.sparse_coo, device=device),
    "randint": lambda device: torch.randint(9, (2,), device=device),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_tensors_are_made_past_a_mode_that_looks_away(cuda, make):
    with FakeTensorMode(), no_dispatch():
        made = [make("cuda"), make("cuda:1")]
    assert [tensor.device for tensor in made] == cuda[:2]
    assert not any(isinstance(tensor, FakeTensor) for tensor in made)


class Halves(torch.nn.Module):
    def forward(self, x):
        return (x.sum().int() + x).half()  # each conversion asserts what it converts


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of draft_export's log
@pytest.mark.parametrize("export", [torch.export.export, torch.export.draft_export])
def test_exported_program_computes_on_its_device(cuda, export):
    x = torch.ones(2, 3, device="cuda:1")
    program = export(Halves(), (x,)).module()
    asserts = torch.ops.aten._assert_tensor_metadata.default
    assert asserts in {node.target for node in program.graph.nodes}
    result = program(x)
    assert (result.device, result.tolist()) == (cuda[1], [[7] * 3] * 2)
    with pytest.raises((RuntimeError, AssertionError), match="cuda:1"):
        program(x.to("cuda:0"))
    del program
    gc.collect()
