"""torch.compile compiles a program, and never the Python code that the devices are made of."""

import contextlib
import operator
import re
import sys
import threading
import types
import warnings
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import simgpu
from simgpu._backend import dynamo

WATCHING = {
    "nothing": contextlib.nullcontext,
    "races": simgpu.races,
    "asynchronous": simgpu.asynchronous,
    "clock": lambda: simgpu.clock("A100"),
}


@pytest.mark.parametrize("watching", WATCHING.values(), ids=list(WATCHING))
def test_a_graph_break_compiles_no_single_kernels(simulated, compiler, watching):
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

    with watching():
        on_device = seen(simulated[1])
    assert on_device == seen("cpu")


def called_by_ours(x):
    return x + 1


CODE = """
import functools

def plain(then, x):
    return then(x.abs())

@functools.cache
def cached(then, x):
    return then(x.abs())

class Holder:
    @staticmethod
    def static(then, x):
        return then(x.abs())
"""


@pytest.mark.parametrize("name", ["plain", "cached", "Holder.static"])
@pytest.mark.parametrize(
    ("module", "is_compiled"),
    [("", True), ("_explore.races.", False), ("_explore.races.host", True)],
)
def test_functions_of_ours_are_not_compiled(simulated, compiler, module, is_compiled, name):
    """What they call is, unless they watch the program, which calls nothing of it."""
    ours = types.ModuleType(f"simgpu.{module}_made_up")
    ours.__package__ = ours.__name__.rpartition(".")[0]
    exec(CODE, vars(ours))
    with (
        mock.patch.dict(sys.modules, {ours.__name__: ours}),
        mock.patch.multiple(dynamo, _imported=0, _marked_modules=set()),
    ):
        dynamo.skip_own_frames()
    function = operator.attrgetter(name)(ours)

    @torch._dynamo.disable(recursive=False)  # not this, but what it calls
    def caller(x):
        return function(called_by_ours, x)

    compiled = []

    def backend(graph, _):
        compiled.extend(node.name for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    assert torch.compile(lambda x: caller(x), backend=backend)(-torch.ones(2)).tolist() == [2.0] * 2
    assert compiled == (["add"] if is_compiled else [])


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


def test_a_program_asks_the_device_module_for_the_current_device(simulated, compiler):
    """In a thread that has set none yet."""
    found = []

    @torch.compile(backend="eager")
    def program(x):
        return x + torch.get_device_module(x.device.type).current_device()

    def run():
        found.append(program(torch.zeros((), device=simulated[1])).item())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [0]


@pytest.mark.parametrize("imported_within", [False, True])
@given(indices=st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_blocks_of_a_device_are_compiled_by_both_names(compiler, imported_within, indices):
    """Also where the compiler, imported within `as_cuda`, knows their class as that of CUDA."""
    from torch._dynamo.variables import ctx_manager

    first, second, third = indices

    def program(kind):
        module = torch.cuda if kind == "cuda" else torch.simgpu
        with module.device(second):
            inner = torch.ones(2, device=kind)
            with module.device(third):
                innermost = torch.ones(2, device=kind)
        return torch.ones(2, device=kind), inner, innermost

    table = getattr(ctx_manager, "_device_context_manager_map", {})
    with mock.patch.dict(table):
        for kind, block in (("cuda", simgpu.as_cuda), ("simgpu", simgpu.devices)):
            with block(3):
                if imported_within and kind == "cuda":
                    table[torch.cuda.device] = ctx_manager.CUDADeviceVariable
                module = getattr(torch, kind)
                module.set_device(first)
                outputs = torch.compile(program, backend="eager")(kind)
                assert [output.device.index for output in outputs] == indices
                assert module.current_device() == first


PROGRAM_THAT_IMPORTS_IT = """
import torch

@torch.compile(backend="eager")
def program(x):
    with torch.cuda.device(1):
        return x.to("cuda") + torch.ones(2, device="cuda")

print(program(torch.ones(2)).tolist(), torch.cuda.current_device())
"""


def test_the_compiler_may_be_imported_as_cuda(python, tmp_path):
    """It takes functions of torch.cuda into tables then, each of which has to be another one."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM_THAT_IMPORTS_IT)
    done = python("-m", "simgpu", "run", "--devices", "2", script, PYTHONWARNINGS="default")
    assert done.stdout == "[2.0, 2.0] 0\n", done.stderr


@pytest.mark.parametrize("block", [simgpu.devices, simgpu.as_cuda])
def test_export_and_aot_autograd_work_by_both_names(compiler, block):
    """With tensors without data in between."""
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


@contextlib.contextmanager
def by_inductor():
    """What reaches inductor, which writes no kernels here: the inputs of each graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        from torch._inductor import compile_fx
    seen = []

    def compile(model, inputs, **_):
        seen.append(inputs)
        return model.forward

    with mock.patch.object(compile_fx, "compile_fx", compile):
        yield seen


@given(
    block=st.sampled_from([simgpu.devices, simgpu.as_cuda]),
    mode=st.sampled_from([None, "reduce-overhead", "max-autotune"]),
    on_device=st.booleans(),
)
def test_the_default_backend_runs_graphs_on_devices_op_by_op(compiler, block, mode, on_device):
    """Also one that only makes a tensor there; graphs of the CPU only are inductor's."""
    torch.compiler.reset()
    with by_inductor() as seen, block(2) as devices:
        device = devices[1] if on_device else torch.device("cpu")
        layer = torch.nn.Linear(3, 2).to(device)
        x = torch.ones(4, 3, device=device)
        by_layer = torch.compile(layer, mode=mode)(x)
        assert by_layer.tolist() == layer(x).tolist()
        assert by_layer.device == device
        made = torch.compile(lambda n: torch.ones(n, device=device) * 2, mode=mode)(3)
        assert (made.tolist(), made.device) == ([2.0] * 3, device)
    assert len(seen) == (0 if on_device else 2)


@given(cuda_first=st.booleans(), backend=st.sampled_from(["eager", "aot_eager"]))
def test_code_compiled_for_one_name_is_not_run_by_the_other(compiler, cuda_first, backend):
    torch.compiler.reset()  # nothing that was compiled otherwise
    compiled = torch.compile(lambda x: torch.zeros(2, device=x.device) + x, backend=backend)
    blocks = [simgpu.as_cuda, simgpu.devices] * 2
    for block in blocks if cuda_first else blocks[::-1]:
        with block(2) as devices:
            assert compiled(torch.ones(2, device=devices[1])).device == devices[1]


@pytest.fixture
def inductor(compiler):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        import torch._inductor.compile_fx
    return torch._inductor


@pytest.mark.parametrize("block", [simgpu.devices, simgpu.as_cuda])
def test_inductor_and_cudagraphs_run_op_by_op_or_are_refused(inductor, block):
    with block(2) as devices:
        inputs = [torch.ones(3, device=devices[1])]
        graph = torch.fx.symbolic_trace(lambda x: ((x * 2).relu(),))
        for compile in (inductor.compile, inductor.compile_fx.compile_fx):
            assert compile(graph, inputs)(*inputs)[0].tolist() == [2.0] * 3
        for compile in (
            inductor.standalone_compile,
            inductor.aot_compile,
            inductor.compile_fx.compile_fx_inner,
        ):
            with pytest.raises(simgpu.errors.UnsupportedError, match=f"graph on {devices[1]}"):
                compile(graph, inputs)
        compiled = torch.compile(lambda x: x * 2, backend="cudagraphs")
        assert compiled(inputs[0]).tolist() == [2.0] * 3
        assert compiled(inputs[0]).device == devices[1]


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")

CONVOLUTIONS = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}


def operators(traced):
    return re.findall(r"aten::\w+", str(traced.inlined_graph))


@given(
    dims=st.integers(1, 3),
    transposed=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "kernel_size": st.integers(1, 3),
            "stride": st.integers(1, 2),
            "padding": st.integers(0, 2),
            "groups": st.sampled_from([1, 2]),
            "bias": st.booleans(),
        }
    ),
    batch=st.integers(1, 3),
    checked=st.booleans(),
)
def test_a_traced_convolution_is_the_one_traced_on_the_cpu(
    simulated, dims, transposed, options, batch, checked
):
    host = CONVOLUTIONS[dims, transposed](2, 4, **options)
    rows = torch.arange(float(batch * 2 * 5**dims)).reshape(batch, 2, *[5] * dims)
    module = CONVOLUTIONS[dims, transposed](2, 4, **options).to(simulated[1])
    module.load_state_dict(host.state_dict())
    expected = torch.jit.trace(host, rows)
    traced = torch.jit.trace(module, rows.to(simulated[1]), check_trace=checked)
    assert operators(traced) == operators(expected)
    for later in (rows, rows.flip(0) + 1):  # a trace that kept a constant would give it again
        there = traced(later.to(simulated[1]))
        assert there.device == simulated[1]
        torch.testing.assert_close(there.cpu(), expected(later))
    traced(rows.to(simulated[1])).sum().backward()
    expected(rows).sum().backward()
    for ours, theirs in zip(module.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


MODULES = {
    "normalized": lambda: nn.Sequential(nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), nn.GELU()),
    "recurrent": lambda: nn.GRU(5, 3, batch_first=True),
    "attention": lambda: nn.TransformerEncoderLayer(5, 1, 7, dropout=0.0, batch_first=True),
    "padded": lambda: nn.Conv1d(3, 3, 3, padding="same", padding_mode="circular"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_traced_module_is_the_one_traced_on_the_cpu(simulated, name):
    torch.manual_seed(0)
    host = MODULES[name]()
    torch.manual_seed(0)
    module = MODULES[name]().to(simulated[1])
    rows = torch.randn(2, 3, 5)
    expected = torch.jit.trace(host, rows)
    traced = torch.jit.trace(module, rows.to(simulated[1]))
    assert operators(traced) == operators(expected)
    torch.testing.assert_close(traced(rows.to(simulated[1])), expected(rows), check_device=False)
