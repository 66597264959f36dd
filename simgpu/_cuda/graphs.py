"""`torch.cuda.CUDAGraph` under `as_cuda`: work that is captured once and replayed.

`torch.cuda.graph` and `torch.cuda.make_graphed_callables` are PyTorch's own and use this class.
What a capture records and forbids stands in `simgpu._memory.graphs` and `simgpu._runtime.captures`.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch

from simgpu._backend.device_module.unsupported import refusal
from simgpu._memory.graphs import Graph, Recording
from simgpu._patches import Action, Patch, Patches, Row
from simgpu._runtime import streams
from simgpu.errors import CaptureError, UnsupportedError

_MODES = ("global", "thread_local", "relaxed")
_NO_GRAPH = "Called CUDAGraph::{} without a preceding successful capture."

_Pool = tuple[int, int]
_pool_numbers = itertools.count(1)


def graph_pool_handle() -> _Pool:
    """A name for memory that several graphs share; every graph here has memory of its own."""
    return 0, next(_pool_numbers)


class CUDAGraph:
    """Kernels and copies of one capture, to be replayed on the same memory (torch.cuda.CUDAGraph).

    `keep_graph` is accepted: there is nothing to instantiate.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep = keep_graph
        self._recording: Recording | None = None
        self._graph: Graph | None = None
        self._pool: _Pool | None = None

    def capture_begin(
        self,
        pool: _Pool | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Record the work of the current stream from now on, and of streams that wait for it.

        Raises:
            CaptureError: on a default stream, in the middle of a capture of that stream, or with a
                graph that has been captured already.
            ValueError: another mode than "global", "thread_local" or "relaxed".
            UnsupportedError: `check_input_liveness`, since a graph here keeps its inputs alive.
        """
        if capture_error_mode not in _MODES:
            raise ValueError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        if check_input_liveness:
            raise UnsupportedError(
                "check_input_liveness=True has nothing to check on simulated devices: a graph "
                "keeps the tensors that it reads alive. Leave it out, or run on real CUDA"
            )
        if self._graph is not None or self._recording is not None:
            raise CaptureError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance or call reset()."
            )
        stream = streams.current_stream()
        if stream.stream_id == 0:
            raise CaptureError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        recording = Recording(stream)
        recording.begin()
        self._recording = recording
        self._pool = pool or (next(_pool_numbers), 0)

    def capture_end(self) -> None:
        """Stop recording; what was computed meanwhile has not happened.

        Raises CaptureError where something forbidden was tried, where a stream that joined has not
        been waited for, or on another stream than that of `capture_begin`.
        """
        recording, self._recording = self._recording, None
        if recording is None:
            raise CaptureError(_NO_GRAPH.format("capture_end"))
        stream = streams.current_stream()
        graph = recording.end()
        if recording.origin != streams.key_of(stream):
            raise CaptureError("Capture must end on the same stream it began on.")
        if not len(graph):
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=2,
            )
        self._graph = graph

    def instantiate(self) -> None:
        """Make the graph ready to be replayed: it always is."""
        self._captured("instantiate")

    def replay(self) -> None:
        """Do the recorded work again: with what its inputs hold now, and new random numbers."""
        self._captured("replay").replay()

    def reset(self) -> None:
        """Forget what was captured, and let go of its memory."""
        self._graph = self._pool = None

    def pool(self) -> _Pool:
        """The name of the graph's memory, to be handed to `capture_begin` of another one."""
        self._captured("pool")
        assert self._pool is not None, "a captured graph has one"
        return self._pool

    def _captured(self, name: str) -> Graph:
        if self._graph is None:
            raise CaptureError(_NO_GRAPH.format(name))
        return self._graph

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let the graph draw from `generator`: it may draw from any of a simulated device."""

    def enable_debug_mode(self) -> None:
        """Keep what `debug_dump` would write: nothing."""

    debug_dump = refusal("torch.cuda.CUDAGraph.debug_dump", None)
    raw_cuda_graph = refusal("torch.cuda.CUDAGraph.raw_cuda_graph", None)
    raw_cuda_graph_exec = refusal("torch.cuda.CUDAGraph.raw_cuda_graph_exec", None)
    get_graph_data = refusal("torch.cuda.CUDAGraph.get_graph_data", None)

    def __del__(self) -> None:
        recording: Any = getattr(self, "_recording", None)
        if recording is not None:
            recording.stop()


def _forget_capture_stream(patches: Patches) -> None:
    def forget() -> None:
        torch.cuda.graphs.graph.default_capture_stream = None

    forget()
    patches.then(forget)


CUDAGraph.__module__ = "torch.cuda.graphs"

PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.cuda.graphs",
        "CUDAGraph",
        value=CUDAGraph,
        why="records the launches of simulated devices; torch.cuda.graph uses it",
    ),
    Patch(
        "torch.cuda.graphs",
        "graph_pool_handle",
        value=graph_pool_handle,
        why="C++ has it for real CUDA alone",
    ),
    Action(
        "the stream that `torch.cuda.graph` captures on unless it is given one, which it keeps",
        run=_forget_capture_stream,
        why="it belonged to other devices",
    ),
)
