"""`torch.simgpu.memory_snapshot`, and a history of allocations for it.

The answers have the form that PyTorch documents at `torch.cuda.memory._snapshot`, and its memory
visualiser reads them. Segments and blocks are those of `Device.placement`. While a history is
recorded, an instrument keeps the stack of every allocation, and its address, which is that of the
storage.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import gather_traceback, symbolize_tracebacks

from simgpu._core import allocator_model as model
from simgpu._core import hooks, streams, world
from simgpu._core.device import Block, Device

_CONTEXTS = (None, "state", "alloc", "all")
_STATES = {None: "inactive", model.AWAITING: "active_pending_free"}  # by a block's token
# Frames in these files are between the program and the allocation, and do not help it.
_OWN_FILES = (str(Path(__file__).resolve().parents[2]) + os.sep, torch._ops.__file__)


def _of_block(index: int, block: Block) -> dict[str, Any]:
    """Size, stream and address of a block of a device."""
    stream = streams.handle_of(index, block.stream)
    return {"size": block.nbytes, "stream": stream, "addr": block.address}


class History(hooks.Instrument):
    """Keeps the stack of every allocation that lives, and with `enabled="all"` what happened."""

    def __init__(self, enabled: str, context: str | None, stacks: str, max_entries: int) -> None:
        if enabled not in ("state", "all") or context not in _CONTEXTS:
            raise RuntimeError(f"no such history: enabled={enabled!r}, context={context!r}")
        self._keeps_events = enabled == "all"
        self._context = context
        self._cpp = stacks == "all"
        self._entries: dict[int, deque[tuple[dict[str, Any], Any]]] = {}  # with their stacks
        self._max_entries = max_entries
        self.stacks: dict[tuple[int, object], Any] = {}  # by device and token
        self.world = world.current_world()
        self.full = [] if self.world is None else self.world.full

    def _stack(self, context: str) -> Any:
        """The stack now, if it is wanted by the given context or a wider one."""
        if _CONTEXTS.index(self._context) < _CONTEXTS.index(context):
            return None
        return gather_traceback(True, True, self._cpp)

    def _note(self, index: int, action: str, stack: Any, fields: dict[str, Any]) -> None:
        if self._keeps_events:
            if index not in self._entries:
                limit = min(self._max_entries, sys.maxsize)
                self._entries[index] = deque(maxlen=limit)
            entry = {"action": action, **fields, "time_us": time.time_ns() // 1000}
            self._entries[index].append((entry, stack))

    def allocated(self, device: torch.device, block: Any, storage: Any, allocation: object) -> None:
        """Keep the stack."""
        index, stack = device.index, self._stack("state")
        if stack is not None:
            self.stacks[index, block] = stack
        shown = stack if self._context in ("alloc", "all") else None
        self._note(index, "alloc", shown, _of_block(index, block))

    def on_free(self, index: int, block: Block) -> None:
        """Memory dies, in this thread and at this moment."""
        stack = self._stack("all")
        for action in ("free_requested", "free_completed"):
            self._note(index, action, stack, _of_block(index, block))

    def freed(self, device: torch.device, block: Any) -> None:
        """The memory of a block may be used again."""
        self.stacks.pop((device.index, block), None)

    def out_of_memory(self, device: Device, nbytes: int) -> None:
        """An allocation failed."""
        index = device.index
        stream = streams.handle_of(index, streams.current_stream_id(index))
        fields = {"size": model.rounded(nbytes), "stream": stream, "device_free": _free(device)}
        self._note(index, "oom", self._stack("alloc"), fields)

    def devices_changed(self, devices: Sequence[torch.device]) -> None:
        """There is nothing more to record without devices."""
        if not devices:
            record_history(None)

    def events(self, index: int) -> list[dict[str, Any]]:
        """What happened on a device, from the first to the last, stacks in words."""
        entries = self._entries.get(index, ())
        frames = _frames([stack for _, stack in entries])
        return [{**fields, "frames": f} for (fields, _), f in zip(entries, frames, strict=True)]


def _frames(stacks: Iterable[Any]) -> list[list[dict[str, Any]]]:
    """Stacks in words, innermost frame first, without the frames of simgpu itself."""
    stacks = list(stacks)
    known = [stack for stack in stacks if stack is not None]
    words = iter(symbolize_tracebacks(known) if known else ())
    return [
        []
        if stack is None
        else [frame for frame in next(words) if not frame["filename"].startswith(_OWN_FILES)]
        for stack in stacks
    ]


_history: History | None = None
_last: History | None = None  # whose events are still shown after it has ended


def _shown() -> History | None:
    """The history of the devices that there are now, if any was recorded."""
    return _last if _last is not None and _last.world is world.current_world() else None


def record_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    clear_history: bool = False,
    *_: Any,
) -> None:
    """Record from now on, or no longer: the arguments are those of torch's function in Python."""
    global _history, _last
    outer = _history
    if outer is not None:
        hooks.remove(outer)
        outer.full.remove(outer.out_of_memory)
        _history = None
    for device in world.active_devices:
        device.call_at_free(None)
    if enabled is None:
        return
    _history = _last = History(enabled, context, stacks, max_entries)
    if outer is not None:
        _history.stacks = outer.stacks
        if not clear_history:
            _history._entries = outer._entries
    hooks.add(_history)
    _history.full.append(_history.out_of_memory)
    if enabled == "all":
        for device in world.active_devices:
            device.call_at_free(partial(_history.on_free, device.index))


def record_history_legacy(enabled: bool, record_context: bool = True, *_: Any) -> None:
    """What `torch.cuda.memory._record_memory_history(True)` meant in older releases."""
    record_history("all" if enabled else None, "all" if record_context else None, "python")


def is_recording() -> bool:
    """Whether a history is recorded."""
    return _history is not None


def _segments(device: Device) -> list[dict[str, Any]]:
    """The segments of a device, by address, with the stacks of recorded blocks."""
    history = _shown()
    stacks = {} if history is None else history.stacks
    segments = sorted(device.placement().segments.values(), key=lambda segment: segment.address)
    pieces = [piece for segment in segments for piece in segment.pieces()]
    known = [stacks.get((device.index, piece.token)) for piece in pieces]
    frames = dict(zip(pieces, _frames(known), strict=True))
    return [_segment(device.index, segment, frames) for segment in segments]


def _segment(
    index: int, segment: model.Segment, frames: dict[model.Piece, list[dict[str, Any]]]
) -> dict[str, Any]:
    pieces = list(segment.pieces())
    active = [piece for piece in pieces if piece.token is not None]
    return {
        "device": index,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(piece.size for piece in active if piece.token is not model.AWAITING),
        "active_size": sum(piece.size for piece in active),
        "requested_size": sum(piece.requested for piece in active),
        "stream": streams.handle_of(index, segment.pool.stream),
        "segment_type": model.POOLS[segment.pool.number].removesuffix("_pool"),
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames[pieces[0]],
        "blocks": [
            {
                # A recorded block says where its tensor really is, as the events of its history do.
                "address": getattr(piece.token, "address", piece.address),
                "size": piece.size,
                "requested_size": piece.requested,
                "state": _STATES.get(piece.token, "active_allocated"),
                "frames": frames[piece],
            }
            for piece in pieces
        ],
    }


def snapshot(_: Any = None) -> dict[str, Any]:
    """Segments and histories of all devices, as `torch.cuda.memory._snapshot` describes them."""
    history = _shown()
    return {
        "segments": [segment for device in world.active_devices for segment in _segments(device)],
        "device_traces": [
            [] if history is None else history.events(device.index)
            for device in world.active_devices
        ],
        "allocator_settings": {},
        "external_annotations": [],
    }


def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of all devices, with their blocks."""
    segments: list[dict[str, Any]] = snapshot()["segments"]
    return segments


def allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """The stack of the allocation whose storage begins at an address; None if not recorded."""
    for segment in memory_snapshot():
        for block in segment["blocks"]:
            if block["address"] == data_ptr and block["frames"]:
                frames: list[dict[str, Any]] = block["frames"]
                return frames
    return None


def _free(device: Device) -> int:
    """Bytes that are in no segment."""
    return max(0, device.capacity - device.placement().reserved)


def observe_out_of_memory(observer: Callable[[int, int, int, int], None]) -> None:
    """Call `observer(device, asked, allowed, free)` wherever one of these devices is full.

    In bytes; `asked` are those of the segment that was asked for.
    """
    there = world.current_world()
    if there is not None:
        there.full.append(
            lambda device, nbytes: observer(
                device.index, model.segment_size(model.rounded(nbytes)), device.limit, _free(device)
            )
        )
