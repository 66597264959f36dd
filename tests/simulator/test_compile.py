"""torch.compile compiles a program, and never the Python code that the devices are made of."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import simgpu


def test_what_a_graph_break_runs_is_not_compiled_kernel_by_kernel(simulated, compiler):
    """The program's frames and graphs are those that it has on the CPU, and nothing warns."""
    from torch._dynamo.utils import counters

    def program(x):
        y = x.sin() + 1
        y = y[: len(y.tolist())]  # breaks the graph
        try:
            torch._dynamo.graph_break()
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                y = y @ y[y > 0].reshape(2, 2)  # in a frame that is given up
        finally:
            y = y.float()
        return y.svd()[1].sum()

    def seen(device):
        torch.compiler.reset()
        counters.clear()
        graphs = []

        def backend(graph, _):
            graphs.append(graph)
            return graph.forward

        value = torch.compile(program, backend=backend)(torch.ones(2, 2, device=device))
        return value.item(), len(graphs), dict(counters["frames"])

    assert seen(simulated[1]) == seen("cpu")


def test_seeds_and_streams_break_a_graph_and_no_more(simulated, compiler):
    module = torch.simgpu

    @torch.compile(backend="eager")
    def program(x):
        module.seed_all()
        state = module.get_rng_state(x.device)
        first = torch.rand_like(x)
        module.current_stream(x.device).synchronize()
        module.set_rng_state(state, x.device)
        return first - torch.rand_like(x)

    for device in simulated[:2]:
        assert program(torch.ones(3, device=device)).tolist() == [0.0] * 3


@pytest.mark.parametrize("block", [simgpu.devices, simgpu.as_cuda])
def test_export_and_aot_autograd_work_by_both_names(compiler, block):
    """With tensors without data in between; inductor is left out under as_cuda."""
    with block(2) as devices:
        layer = torch.nn.Linear(3, 2).to(devices[1])
        x = torch.ones(4, 3, device=devices[1])
        exported = torch.export.export(layer, (x,)).module()
        assert exported(x).tolist() == layer(x).tolist()
        assert exported(x).device == devices[1]
        torch.compile(layer, backend="aot_eager")(x).sum().backward()
        assert layer.weight.grad.tolist() == [[4.0] * 3] * 2
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert layer(torch.ones(1, 3, device=devices[1])).device == devices[1]
        if devices[1].type == "cuda":
            assert torch.compile(layer)(x).device == devices[1]
