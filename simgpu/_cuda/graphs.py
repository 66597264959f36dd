"""`torch.cuda.CUDAGraph` under `as_cuda`: work that is recorded once and replayed.

`torch.cuda.graph` and `torch.cuda.make_graphed_callables` are PyTorch's own and use this class.
What a capture forbids is in `simgpu._core.captures`.
"""

from __future__ import annotations

import bisect
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from simgpu._backend.namespace.on_demand import refusal
from simgpu._core import hooks, streams
from simgpu._core.by_address import ByAddress
from simgpu._core.captures import Capture
from simgpu._core.hooks import Launch, Node
from simgpu._core.launch import HOST_KEYS, Kernel, is_host_number, is_non_blocking, launch
from simgpu._core.operators import (
    clone,
    copy_,
    has_masks,
    set_storage,
    tensors_in,
    waits_for_values,
    written,
)
from simgpu._core.order import Clock
from simgpu._core.unwritten import fill_unwritten
from simgpu._memory import pinned
from simgpu._memory.ownership import host_empty, on_one_storage, with_bits_of
from simgpu._random.fill import Source
from simgpu._random.generator_state import Stream
from simgpu._util.patching import Patches, Table
from simgpu.errors import CaptureError, UnsupportedError

# Work that is recorded once and replayed on the same memory, as by torch.cuda.CUDAGraph.
#
# A `Recording` sees every kernel and copy of the streams that it captures, with its arguments and
# results. On CUDA nothing is computed during a capture. A kernel of the host only knows the
# shape of its results by computing them, so it does; at the end everything that existed before has
# its old values again, generators their old states, and what the graph has made is filled with NaN,
# since on CUDA there is nothing in it yet. `Graph.replay` launches the same kernels on the same
# memory.
#
# The memory of a graph's results is the graph's: it stays when their tensors die. The ledger of the
# device counts only tensors. A graph keeps alive the tensors from outside that it reads or writes.

Tensor = torch.Tensor
PATCHES = Table()
_detach = torch.ops.aten.detach.default._handle.redispatch_boxed

_NOT_PINNED = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
    "pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


def _written(launch: Launch) -> Iterator[Tensor]:
    changes = written(launch.kernel.op)
    for key, value in (*enumerate(launch.args), *launch.kwargs.items()):
        if key in changes:
            yield from tensors_in(value)


def _fresh(result: Any, arguments: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of a result that share no storage with the arguments."""
    return [
        tensor
        for tensor in tensors_in(result)
        if tensor.numel() and not any(on_one_storage(tensor, each) for each in arguments)
    ]


class _Result:
    """The storage of a new tensor, and all of it as a row of the tensor's dtype."""

    def __init__(self, tensor: Tensor) -> None:
        self.storage = storage = tensor.untyped_storage()
        self.begin = storage.data_ptr()
        self.end = self.begin + storage.nbytes()
        self.whole = host_empty(0, tensor.dtype)
        size = (storage.nbytes() // tensor.itemsize,)
        set_storage(HOST_KEYS, self.whole, storage, 0, size, (1,))


class _Memory:
    """The storages of a graph's results, by address."""

    def __init__(self) -> None:
        self.results: ByAddress[_Result] = ByAddress()

    def find(self, tensor: Tensor) -> torch.UntypedStorage | None:
        """The storage that has `tensor`, or None."""
        result = self.results.at(tensor.data_ptr()) if tensor.numel() else None
        return None if result is None else result.storage

    def own(self, value: Any, fixed: bool = False) -> Any:
        """`value`, with tensors of the graph's memory made anew: they keep no tensor alive.

        With `fixed`, a number of the host is what it is now, as a CUDA kernel takes it.
        """
        if isinstance(value, (tuple, list)):
            owned = [self.own(item, fixed) for item in value]
            return tuple(owned) if isinstance(value, tuple) else owned
        if not isinstance(value, Tensor):
            return value
        storage = self.find(value)
        if storage is None:
            return clone(HOST_KEYS, value) if fixed and is_host_number(value) else value
        tensor = host_empty(0, value.dtype)
        offset = (value.data_ptr() - storage.data_ptr()) // value.itemsize
        set_storage(HOST_KEYS, tensor, storage, offset, value.shape, value.stride())
        return with_bits_of(value, tensor)

    def clear(self) -> None:
        """Fill all of it with values that cannot pass for a result."""
        for result in self.results:
            fill_unwritten(result.whole)


class _Move(NamedTuple):
    """A stream of random numbers goes on at an offset from where it is when the graph begins."""

    stream: Stream
    offset: int


class _EventNode(NamedTuple):
    """An event of the program is recorded or waited for, by the current stream of a device."""

    event: torch.Event
    device_index: int
    records: bool


class Graph:
    """The kernels and copies of one capture, in their order."""

    def __init__(self) -> None:
        self.work: list[tuple[Kernel, int, Any, Any, Any, Node] | _Move | _EventNode] = []
        self.nodes = 0  # how many kernels and copies
        self._identity = object()  # not the graph, which its own nodes would keep alive

    def append(
        self, about: Launch, memory: _Memory, outputs: list[Tensor], branch: int, known: list[int]
    ) -> None:
        """Record a launch on a branch whose new results are `outputs`.

        `known` are the nodes that come before it.
        """
        route = None
        if about.kind == "copy":
            route = about.source.index, about.target.index
        kernel = Kernel(about.kernel.op, _into(about.kernel, outputs))
        node = Node(self._identity, self.nodes, branch, tuple(known), outputs)
        self.nodes += 1
        changed = {id(tensor) for tensor in _written(about)}
        reads = about.kind != "copy"
        args = tuple(memory.own(v, reads and id(v) not in changed) for v in about.args)
        kwargs = {k: memory.own(v, reads and id(v) not in changed) for k, v in about.kwargs.items()}
        self.work.append((kernel, about.device.index, args, kwargs, route, node))

    def replay(self) -> None:
        """Launch it all again, on the current streams."""
        moved = [work.stream for work in self.work if isinstance(work, _Move)]
        starts = {id(stream): stream.get_offset() for stream in moved}
        for work in self.work:
            if isinstance(work, _Move):
                work.stream.set_offset((starts[id(work.stream)] + work.offset) % 2**64)
            elif isinstance(work, _EventNode):
                stream = streams.current_stream(work.device_index)
                (work.event.record if work.records else work.event.wait)(stream)
            else:
                launch(*work)


def _into(kernel: Kernel, outputs: list[Tensor]) -> Any:
    """Host code that writes the new results of `kernel` to `outputs`."""

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        result = kernel.run(keys, *args, **kwargs)
        if outputs:
            given = list(tensors_in(*args, *kwargs.values()))
            for output, tensor in zip(outputs, _fresh(result, given), strict=True):
                copy_(HOST_KEYS, output, tensor)
        return result

    return run


class Recording(Capture):
    """A capture under way: what is recorded so far, and how to undo what it did."""

    def __init__(self, stream: torch.Stream) -> None:
        super().__init__(stream)
        self._graph = Graph()
        self._memory = _Memory()
        hooks.finish_queued_work()
        self._before: dict[Any, tuple[Tensor, Tensor]] = {}  # written memory, and its old values
        self._generators: dict[int, tuple[Any, Tensor]] = {}  # and their old states
        # Of each stream: how much it had done when a node was recorded, and the node's number.
        self._nodes: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def end(self) -> Graph:
        """Stop, and return the graph; raises if it cannot be replayed."""
        self.stop()
        self.check_end()
        return self._graph

    def stop(self) -> None:
        """Record no more, and undo what was computed meanwhile."""
        super().stop()
        # Values and states are put back, the last ones taken first.
        for tensor, values in reversed(self._before.values()):
            copy_(HOST_KEYS, tensor, values)
        for generator, state in self._generators.values():
            generator.set_state(state)
        self._before.clear()
        self._generators.clear()
        self._memory.clear()

    def before_launch(self, launch: Launch) -> None:
        super().before_launch(launch)
        if not self.holds((launch.device.index, launch.stream)):
            return
        self._check(launch)
        for tensor in _written(launch):
            self._remember(tensor)
        for value in (*launch.args, *launch.kwargs.values()):
            generator = value.stream if isinstance(value, Source) else value
            if isinstance(generator, Stream):
                self.drawn_from(generator)
            if isinstance(generator, (torch.Generator, Stream)):
                self._remember_state(generator)

    def _remember_state(self, generator: Any) -> None:
        self._generators.setdefault(id(generator), (generator, generator.get_state()))

    def go_on_at(self, stream: Stream, offset: int) -> None:
        self._remember_state(stream)
        super().go_on_at(stream, offset)
        self._graph.work.append(_Move(stream, offset))

    def add_event(self, event: torch.Event, index: int, records: bool) -> None:
        """Have replays record an event, or wait for it, on the current stream of a device."""
        self._graph.work.append(_EventNode(event, index, records))

    def computed(self, launch: Launch, result: Any) -> None:
        queue = launch.device.index, launch.stream
        if not self.holds(queue):
            return
        given = list(tensors_in(*launch.args, *launch.kwargs.values()))
        fresh = _fresh(result, given)
        outputs = []
        for tensor in fresh:
            if self._memory.find(tensor) is None:
                self._memory.results.put(_Result(tensor))
            outputs.append(self._memory.own(tensor))
        if launch.kind != "memory":
            branch, clock = list(self.order.clocks).index(queue), self.order.clock(queue)
            self._graph.append(launch, self._memory, outputs, branch, self._last_nodes(clock))
            done = clock[queue], self._graph.nodes - 1
            self._nodes.setdefault(queue, []).append(done)

    def _last_nodes(self, clock: Clock) -> list[int]:
        """The last node of each stream that comes before what has this clock."""
        known = []
        for key, count in clock.items():
            nodes = self._nodes.get(key, [])
            place = bisect.bisect(nodes, (count, len(self._graph.work)))
            if place:
                known.append(nodes[place - 1][1])
        return known

    def _check(self, launch: Launch) -> None:
        """Raise for work that CUDA does not capture, because the host waits for it."""
        if launch.kind == "copy" and "cpu" in (launch.source.type, launch.target.type):
            self._check_host_copy(launch)
            return
        given = list(tensors_in(*launch.args, *launch.kwargs.values()))
        if any(tensor.layout != torch.strided or tensor.is_nested for tensor in given):
            raise UnsupportedError(
                f"'{launch.op}' with sparse or nested tensors cannot be captured on a simulated "
                "device: leave it out of the graph"
            )
        op = launch.kernel.op
        args, kwargs = launch.args, launch.kwargs
        if has_masks(op, args) or waits_for_values(op, args, kwargs):
            self.refuse()

    def _check_host_copy(self, launch: Launch) -> None:
        """Raise unless a copy from or to the host uses pinned memory and needs no wait."""
        blocks = not is_non_blocking(launch)
        host: Tensor | None = None
        if launch.op == "copy_":
            host = launch.args[launch.target.type != "cpu"]
        elif launch.op == "_to_copy" and launch.source.type == "cpu":
            host = launch.args[0]
        elif launch.op == "_to_copy" and blocks:  # else its result is pinned
            raise CaptureError(_NOT_PINNED)
        if host is not None and not pinned.is_pinned(host):
            raise CaptureError(_NOT_PINNED)
        if blocks:
            self.refuse()

    def _remember(self, tensor: Tensor) -> None:
        """Keep the values of memory from outside before it is written to."""
        if not tensor.numel() or self._memory.find(tensor) is not None:
            return
        key = tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())
        if key not in self._before:
            # A tensor of its own: the kernel may make the given one grow.
            self._before[key] = _detach(HOST_KEYS, tensor), clone(HOST_KEYS, tensor)


_MODES = ("global", "thread_local", "relaxed")
_NO_GRAPH = "Called CUDAGraph::{} without a preceding successful capture."

_Pool = tuple[int, int]
_pool_numbers = itertools.count(1)


@PATCHES.replace("torch.cuda.graphs.graph_pool_handle", why="C++ has it for real CUDA only")
def graph_pool_handle() -> _Pool:
    """A name for memory that several graphs share; every graph here has memory of its own."""
    return 0, next(_pool_numbers)


@PATCHES.replace(
    "torch.cuda.graphs.CUDAGraph",
    why="records the launches of simulated devices; torch.cuda.graph uses it",
)
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
        if not graph.work:
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
        """Forget what was captured, and release its memory."""
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
        """Make the graph draw from `generator`: it may draw from any of a simulated device."""

    def enable_debug_mode(self) -> None:
        """Keep what `debug_dump` would write: nothing."""

    debug_dump, raw_cuda_graph, raw_cuda_graph_exec, get_graph_data = (
        refusal(f"torch.cuda.CUDAGraph.{name}", None)
        for name in ("debug_dump", "raw_cuda_graph", "raw_cuda_graph_exec", "get_graph_data")
    )

    def __del__(self) -> None:
        recording: Any = getattr(self, "_recording", None)
        if recording is not None:
            recording.stop()


@PATCHES.replace(
    "torch.accelerator.Graph",
    "torch.accelerator.graphs.Graph",
    optional=True,
    why="C++ makes the graph of the accelerator, and knows none for simulated devices",
)
class AcceleratorGraph(CUDAGraph):
    """A CUDAGraph that is a context manager and takes its settings first (torch.accelerator.Graph).

    Args:
        capture_error_mode: as `CUDAGraph.capture_begin` has it; "default" means "global".
    """

    def __init__(
        self,
        keep_graph: bool = False,
        *,
        pool: _Pool | None = None,
        capture_error_mode: str = "default",
    ) -> None:
        super().__init__(keep_graph)
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode

    def capture_begin(self) -> None:  # type: ignore[override]
        """Record the work of the current stream from now on: see `CUDAGraph.capture_begin`."""
        mode = self.capture_error_mode
        super().capture_begin(self.graph_pool, "global" if mode == "default" else mode)

    def __enter__(self) -> None:
        torch.accelerator.synchronize()
        self.capture_begin()

    def __exit__(self, *_: object) -> None:
        self.capture_end()


@PATCHES.action(
    "the stream that `torch.cuda.graph` captures on unless it is given one, which it keeps",
    why="it belonged to other devices",
)
def _forget_capture_stream(patches: Patches) -> None:
    def forget() -> None:
        torch.cuda.graphs.graph.default_capture_stream = None

    forget()
    patches.then(forget)


CUDAGraph.__module__ = "torch.cuda.graphs"
AcceleratorGraph.__module__, AcceleratorGraph.__qualname__ = "torch.accelerator.graphs", "Graph"
