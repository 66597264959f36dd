"""Which memory queued work uses, and when memory that the program has released is overwritten.

Queued work holds memory, and no tensor of the program. So when the program releases a tensor, its
bytes count as given back though queued work still uses them. As from CUDA's caching allocator, the
next allocation on their stream may get them, in the order of that stream: they are overwritten
then, which work of another stream finds that has not run yet. After `record_stream`, no allocation
gets them before that work has run.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from simgpu._core.by_address import ByAddress
from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import empty, no_modes, set_storage
from simgpu._core.order import Clock, merge
from simgpu._core.streams import Key
from simgpu._core.unwritten import fill_unwritten
from simgpu._explore.asynchronous.plans import TensorSignature
from simgpu._explore.asynchronous.queues import Queues
from simgpu._memory.ownership import owned_tensors, with_bits

Tensor = torch.Tensor
_data: Any = torch._C.TensorBase.data
_data_of: Callable[[Tensor], Tensor] = _data.__get__
_inference: Callable[[], bool] = torch._C.is_inference_mode_enabled
_CPU = torch.device("cpu")

_MOST_VIEWS = 64


class Block:
    """Memory that was allocated at once."""

    __slots__ = (
        *("__weakref__", "begin", "end", "key", "life"),
        *("recorded", "storage", "users", "views", "whole"),
    )

    def __init__(self, storage: torch.UntypedStorage, key: Key) -> None:
        self.begin = storage.data_ptr()
        self.end = self.begin + storage.nbytes()
        self.storage = storage
        self.key = key  # the stream that was current when it was allocated
        self.recorded: Collection[Key] = ()
        self.users: Sequence[tuple[Key, int]] = ()  # work of other streams
        self.life: _Life | None = None
        # Those that queued work has held so far; apart from them, the result that it began as.
        self.views: dict[Any, Tensor] | None = None
        self.whole: tuple[TensorSignature, bool, Tensor] | None = None


class _Life(weakref.ref[Any]):
    """Reports when the program has released a block."""

    __slots__ = ("block",)
    block: Block


class Memory:
    """The blocks that the program holds, by address; and those that only queued work holds."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._blocks: ByAddress[Block] = ByAddress()
        # The block that contains an address.
        self.find = self._blocks.at
        # Blocks are released at any moment: noted then by C code, looked at later.
        self._freed: deque[_Life] = deque()
        self._note_freed = self._freed.append
        # By stream, what its next allocation may get, and what has to have run before. Work that
        # has not run keeps its blocks alive; others are not visible.
        self._freed_blocks: dict[Key, list[tuple[weakref.ref[Block], Clock]]] = {}
        # Views of results that are about to be blocks, by address. Their work keeps them alive:
        # results of copies to the host, and of launches that fail, are never blocks.
        self._coming: dict[int, tuple[TensorSignature, weakref.ref[Tensor]]] = {}

    def own(self, key: Key, storage: torch.UntypedStorage, allocation: object) -> None:
        """Know a block from now on until `allocation` dies, as one of the stream `key`."""
        if self._freed:
            self.collect()
        if key in self._freed_blocks:
            self.allocates(key)
        block = Block(storage, key)
        block.life = life = _Life(allocation, self._note_freed)
        life.block = block
        coming = self._coming.pop(block.begin, None)
        if coming is not None:
            form, found = coming
            whole = found()
            if whole is not None:
                block.whole = form, _inference(), whole
        self._blocks.put(block)

    def track_existing_allocations(self) -> None:
        """Know the blocks that are there already, as if allocated on the default streams."""
        for device, tensor, allocation in owned_tensors():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                self.own((device.index, 0), storage, allocation)

    def held(
        self, tensor: Tensor, address: int, form: TensorSignature, block: Block
    ) -> Tensor | None:
        """The same view of the memory, which keeps no tensor of the program alive; None if none."""
        # Tensors made in inference mode are others than those made outside of it.
        inference, whole = _inference(), block.whole
        if whole and whole[0] is form and whole[1] is inference and address == block.begin:
            view: Tensor | None = whole[2]
        else:
            place = address, form, inference
            view = None if block.views is None else block.views.get(place)
        if view is None:
            offset, rest = divmod(address - block.begin, tensor.itemsize)
            if rest:
                return None
            if block.views is None or len(block.views) > _MOST_VIEWS:
                block.views = {}
            view = block.views[place] = view_of(block.storage, offset, tensor)
        if form.is_conj or form.is_neg:
            return with_bits(view, form.is_conj, form.is_neg)
        return view

    def expect(self, result: Tensor, form: TensorSignature) -> Tensor:
        """A view of new memory that is to be a block; it keeps no tensor alive either."""
        view = _data_of(result)
        if len(self._coming) > _MOST_VIEWS:
            self._coming.clear()
        self._coming[view.data_ptr()] = form, weakref.ref(view)
        return view

    def record(self, address: int, key: Key) -> None:
        """`tensor.record_stream`: freed memory waits for the work that the stream has then."""
        block = self.find(address)
        if block is not None:
            block.recorded = {*block.recorded, key}

    def used(self, blocks: Iterable[Block], key: Key, number: int) -> None:
        """Note that some work of a stream uses these blocks."""
        for block in blocks:
            if block.key is not key and block.key != key:
                users = block.users
                if len(users) > 8:
                    users = [user for user in users if not self._queues.is_done(*user)]
                block.users = (*users, (key, number))

    def allocates(self, key: Key) -> None:
        """A stream is about to get memory: what was given back there may be overwritten."""
        if key not in self._freed_blocks:
            return
        kept = []
        for found, needs in self._freed_blocks.pop(key):
            block = found()
            if block is None or not self._is_in_use(block):
                continue
            if self._queues.missing(needs) is None:
                self._queues.add(key, partial(fill_unwritten, block.storage), early=True)
            else:
                kept.append((found, needs))
        if kept:
            self._freed_blocks[key] = kept

    def collect(self) -> None:
        """Give back what the program has released, since this was last asked."""
        while self._freed:
            block = self._freed.popleft().block
            block.life = None  # which refers to it
            if self._blocks.begins_at(block.begin) is not block:
                continue
            self._blocks.remove(block)
            if self._is_in_use(block):
                needs: Clock = {}
                for key in block.recorded:
                    merge(needs, self._queues.order.until(key))
                self._freed_blocks.setdefault(block.key, []).append((weakref.ref(block), needs))

    def _is_in_use(self, block: Block) -> bool:
        """Whether work of another stream that uses it has not run."""
        return not all(self._queues.is_done(*user) for user in block.users)

    def clear(self) -> None:
        """Know nothing any more."""
        self._blocks.clear()
        self._freed.clear()
        self._freed_blocks.clear()
        self._coming.clear()


def view_of(storage: torch.UntypedStorage, offset: int, like: Tensor) -> Tensor:
    """A tensor over `storage` with the dtype, shape and strides of `like`."""
    if no_modes():
        return torch.empty(0, dtype=like.dtype, device="cpu").set_(
            storage, offset, like.shape, like.stride()
        )
    tensor = empty(HOST_KEYS, (0,), dtype=like.dtype, device=_CPU)
    set_storage(HOST_KEYS, tensor, storage, offset, like.shape, like.stride())
    return tensor
