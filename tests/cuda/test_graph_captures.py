"""torch.cuda.CUDAGraph: what a capture refuses, in CUDA's words, and how it ends."""

import warnings

import pytest
import torch

import simgpu
from simgpu.errors import CaptureError, UnsupportedError

SIZE = 4


def capture(graph, work):
    with torch.cuda.graph(graph):
        work()


ILLEGAL = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": torch.nonzero,
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "put by mask": lambda x: x.__setitem__(x > 0, torch.zeros(1, device=x.device)),
    "device": lambda x: torch.cuda.synchronize(),
    "one of two devices": lambda x: (
        torch.cuda.Stream("cuda:1").wait_stream(torch.cuda.current_stream()),
        torch.cuda.synchronize("cuda:0"),
    ),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "event": lambda x: torch.cuda.current_stream().record_event().synchronize(),
    "pinned, but waiting": lambda x: x.copy_(torch.ones(SIZE).pin_memory()),
    "other stream": lambda x: torch.cuda.current_stream().wait_stream(torch.cuda.Stream()),
    "default stream": lambda x: torch.cuda.default_stream().wait_stream(
        torch.cuda.current_stream()
    ),
}


@pytest.mark.parametrize("name", sorted(ILLEGAL))
def test_what_waits_for_the_device_spoils_a_capture(cuda, name):
    x = torch.ones(SIZE, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="failed due to a previous error") as caught:
        capture(graph, lambda: (x.add_(1), ILLEGAL[name](x)))
    assert isinstance(caught.value, torch.AcceleratorError)
    assert str(caught.value.__context__).startswith("CUDA error: ")
    assert x.tolist() == [1.0] * SIZE
    with pytest.raises(CaptureError, match="replay without a preceding"):
        graph.replay()


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x.copy_(torch.ones(SIZE)),
        lambda x: torch.tensor([1.0], device="cuda"),
        lambda x: torch.ones(SIZE).to("cuda", non_blocking=True),
    ],
)
def test_copies_need_pinned_memory(cuda, copy):
    x = torch.ones(SIZE, device="cuda")
    with pytest.raises(RuntimeError, match="during CUDA graph capture unless the CPU tensor is"):
        capture(torch.cuda.CUDAGraph(), lambda: copy(x))


def test_wrong_calls_say_so(cuda):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="captured on a non-default stream"):
        graph.capture_begin()
    for call in (graph.replay, graph.pool, graph.capture_end):
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            call()
    with torch.cuda.stream(torch.cuda.Stream()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="Unknown capture error mode"):
            graph.capture_begin(capture_error_mode="sometimes")
        with pytest.raises(UnsupportedError, match="check_input_liveness"):
            graph.capture_begin(check_input_liveness=True)
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
        with pytest.raises(RuntimeError, match="another graph captures it"):
            torch.cuda.CUDAGraph().capture_begin()
        graph.capture_end()
    assert graph.pool() != torch.cuda.graph_pool_handle() != torch.cuda.graph_pool_handle()
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin()
    with pytest.raises(UnsupportedError, match="debug_dump"):
        graph.debug_dump("file")


def test_a_capture_ends_with_its_graph_or_its_devices():
    with simgpu.as_cuda(1):
        x = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            x.add_(1)
            del graph
            assert not torch.cuda.is_current_stream_capturing()
            assert x.item() == 0
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
    with simgpu.as_cuda(1):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            assert torch.ones(1, device="cuda").item() == 1


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_output_does_not_grow_in_a_capture(cuda):
    x, out = torch.ones(3, SIZE, device="cuda")[:2]
    with pytest.raises(UnsupportedError, match=r"has to grow to shape \(8,\)"):
        capture(torch.cuda.CUDAGraph(), lambda: torch.cat([x, x], out=out.clone()))
    empty = torch.empty(0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cat([x, x], out=empty)
    x.fill_(2)
    graph.replay()
    assert empty.tolist() == [2.0] * 2 * SIZE


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty", "ignore:Sparse invariant checks")
def test_sparse_tensors_are_not_captured(cuda):
    dense = torch.eye(3, device="cuda")
    x = dense.to_sparse()
    with pytest.raises(UnsupportedError, match="sparse or nested"):
        capture(torch.cuda.CUDAGraph(), lambda: torch.sparse.mm(x, dense))


def test_a_capture_ends_with_its_devices():
    with simgpu.as_cuda(1), torch.cuda.stream(torch.cuda.Stream()):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        number = torch.cuda.current_stream().stream_id
    with simgpu.as_cuda(1), torch.cuda.stream(torch.cuda.Stream(stream_id=number)):
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.zeros(SIZE, device="cuda").add_(1).tolist() == [1] * SIZE
    del graph
