"""`scatter`, `scatter_kwargs`, `gather`: nested inputs cut for each device, outputs joined.

`scatter` and `scatter_kwargs` collect the leaves of a structure, cut those that have a batch
dimension and repeat the others; `gather` follows the structure of the first output. What a
structure is, is decided in `_structure.trees`; single tensors are moved by `_transfer`.

May import: `comm`, `_structure`, `_transfer`, `_devices`, `torch`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import PackedSequence

from dataparallel._devices import CPU, DeviceLike, resolve, resolve_all, type_of
from dataparallel._structure import packed_sequences
from dataparallel._structure.scalar_warning import warn_of_scalars
from dataparallel._structure.trees import children_of, path_to, paths, put_together, take_apart
from dataparallel._transfer.autograd import Gather, Scatter, apply, scatter_split
from dataparallel._transfer.copies import gather_checked, move_to_each
from dataparallel._transfer.plain_tensors import is_plain
from dataparallel.comm.scatter_and_gather import check_gatherable

__all__ = ["Chunking", "gather", "scatter", "scatter_kwargs"]

Chunking = Literal["torch", "balanced"]


def chunk_sizes(length: int, devices: int, chunking: Chunking = "torch") -> list[int]:
    """How many of `length` rows each device gets; there may be fewer chunks than devices.

    "torch" cuts as `Tensor.chunk` does, every chunk but the last of ceil(length / devices) rows;
    with "balanced" sizes differ by at most one and no device is idle while rows last. Zero rows
    make an empty chunk for every device.

    Raises:
        ValueError: another `chunking`.
    """
    if chunking not in ("torch", "balanced"):
        raise ValueError(f'chunking must be "torch" or "balanced", but got {chunking!r}')
    if length == 0:
        return [0] * devices
    if chunking == "balanced":
        count = min(length, devices)
        size, larger = divmod(length, count)
        return [size + 1] * larger + [size] * (count - larger)
    size = -(-length // devices)
    full, rest = divmod(length, size)
    return [size] * full + ([rest] if rest else [])


def scatter(
    inputs: Any,
    target_gpus: Sequence[DeviceLike],
    dim: int = 0,
    *,
    chunking: Chunking = "torch",
) -> Any:
    """Cut the tensors in a structure into chunks, one structure for each device.

    Args:
        inputs: a tensor or any nesting of tuples, lists, dicts, dataclasses, subclasses of these
            and registered pytree nodes. Tensors are cut along `dim`, a PackedSequence by its
            sequences; 0-dimensional tensors are copied to every device and all other leaves are
            repeated.
        target_gpus: the devices; integers count devices of the type the tensors are on.
        chunking: see `chunk_sizes`.

    Returns:
        A tuple of tensors for a tensor, else a list of structures of the types given. There may be
        fewer than devices; without anything to cut there is one for each device. A chunk on the
        tensor's own device is a view.

    Raises:
        ValueError: tensors that yield different numbers of chunks; nothing is copied then.
        IndexError: a tensor without `dim`.
        RuntimeError: no devices.

    Source: torch/nn/parallel/scatter_gather.py, scatter.
    """
    columns = _scatter([inputs], ["inputs"], target_gpus, dim, chunking)[0]
    return tuple(columns) if isinstance(inputs, torch.Tensor) else columns


def scatter_kwargs(
    inputs: Any,
    kwargs: dict[str, Any] | None,
    target_gpus: Sequence[DeviceLike],
    dim: int = 0,
    *,
    chunking: Chunking = "torch",
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Scatter positional and keyword arguments together (see `scatter`).

    Returns:
        The positional and the keyword arguments of each replica, of equal length; no replica lacks
        an argument. Both are empty if there are no arguments at all.

    Source: torch/nn/parallel/scatter_gather.py, scatter_kwargs.
    """
    kwargs = kwargs or {}
    if inputs is None or (isinstance(inputs, (tuple, list)) and not inputs):
        if not kwargs:
            return (), ()
        inputs = ()
    if len(target_gpus) == 1 and type(inputs) is tuple:
        device = target_gpus[0]
        leaves = (*inputs, *kwargs.values()) if kwargs else inputs
        if all(_stays(leaf, device, dim) for leaf in leaves):
            return (inputs,), (dict(kwargs),)
    columns = _scatter([inputs, kwargs], ["inputs", "kwargs"], target_gpus, dim, chunking)
    # Every replica may change the keyword arguments it was called with.
    return tuple(columns[0]), tuple(dict(each) for each in columns[1])


def _stays(leaf: Any, device: DeviceLike, dim: int) -> bool:
    """Whether one chunk on `device` is the leaf itself: a tensor that is there, or a constant."""
    if isinstance(leaf, torch.Tensor):
        dims = leaf.dim()
        return (-dims <= dim < dims or dims == 0) and leaf.device == device and is_plain(leaf)
    return leaf is None or type(leaf) in (bool, int, float, str)


def _scatter(
    trees: Sequence[Any],
    names: Sequence[str],
    target_gpus: Sequence[DeviceLike],
    dim: int,
    chunking: Chunking,
) -> list[list[Any]]:
    leaves: list[Any] = []
    nodes = [take_apart(tree, leaves) for tree in trees]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    tensors += [leaf.data for leaf in leaves if isinstance(leaf, PackedSequence)]
    if not tensors:
        count = len(target_gpus)
        columns: list[Sequence[Any]] = [[leaf] * count for leaf in leaves]
    else:
        devices = resolve_all(target_gpus, tensors)
        if not devices:
            raise RuntimeError("scatter needs at least one device, but got target_gpus=[]")
        sizes = [
            None if length is None else chunk_sizes(length, len(devices), chunking)
            for length in (_length(leaf, dim) for leaf in leaves)
        ]
        counts = {len(each) for each in sizes if each is not None}
        if len(counts) > 1:
            where = [path for node, name in zip(nodes, names, strict=True)
                     for path in paths(node, name)]  # fmt: skip
            raise ValueError(_uneven_text(where, sizes, len(devices), dim))
        count = counts.pop() if counts else len(devices)
        used = devices[:count]
        columns = [
            _scatter_leaf(leaf, size, used, dim) for leaf, size in zip(leaves, sizes, strict=True)
        ]
    rows = [iter([column[r] for column in columns]) for r in range(count)]
    return [[put_together(node, row) for row in rows] for node in nodes]


def _length(leaf: Any, dim: int) -> int | None:
    """The batch size of a leaf; None if it is repeated."""
    if isinstance(leaf, torch.Tensor):
        return leaf.size(dim) if leaf.dim() else None
    if isinstance(leaf, PackedSequence):
        return packed_sequences.batch_size(leaf)
    return None


def _uneven_text(
    where: Sequence[str], sizes: Sequence[Sequence[int] | None], devices: int, dim: int
) -> str:
    found = "; ".join(
        f"{path} has batch size {sum(size)} ({len(size)} chunk{'s' * (len(size) != 1)})"
        for path, size in zip(where, sizes, strict=True)
        if size is not None
    )
    return (
        f"the arguments do not yield the same number of chunks along dim {dim} on {devices} "
        f"devices, so rows would be lost: {found}. Give all tensors the same batch size, or pass "
        "what every replica shall see whole as something that is not cut, such as a 0-dimensional "
        "tensor or a buffer of the module"
    )


def _scatter_leaf(
    leaf: Any, sizes: Sequence[int] | None, devices: Sequence[torch.device], dim: int
) -> Sequence[Any]:
    if isinstance(leaf, torch.Tensor):
        if sizes is None:
            return move_to_each(leaf, devices)
        if len(sizes) == 1 and is_plain(leaf) and leaf.device == devices[0]:
            return [leaf]  # whole, and where it shall be
        if leaf.requires_grad and torch.is_grad_enabled():
            chunks: tuple[torch.Tensor, ...] = apply(Scatter, devices, sizes, dim, leaf)
            return chunks
        return scatter_split(leaf, devices, sizes, dim)
    if sizes is not None:
        return packed_sequences.split(leaf, sizes, devices)
    return [leaf] * len(devices)


def gather(outputs: Any, target_device: DeviceLike, dim: int = 0) -> Any:
    """Put the outputs of all replicas together on one device.

    Args:
        outputs: one structure for each replica, all built alike.
        target_device: where tensors go, the CPU included; an integer counts devices of the type
            the tensors are on.
        dim: tensors are concatenated along it, in replica order.

    Returns:
        A structure like the first. Tensors that are all 0-dimensional become a vector, with a
        warning at the first such call of each line of a program. Other leaves are returned as they
        are if all replicas agree, else as a list in replica order.

    Raises:
        ValueError: no outputs, or outputs that are not built alike.
        RuntimeError: tensors whose sizes do not fit.

    Source: torch/nn/parallel/scatter_gather.py, gather.
    """
    outputs = list(outputs)
    if not outputs:
        raise ValueError("gather needs the output of at least one replica, but got none")
    if type(target_device) is int:
        if target_device == -1:
            warnings.warn(
                'target_device=-1 for the CPU is deprecated; pass "cpu" instead',
                FutureWarning,
                stacklevel=2,
            )
            device = CPU
        else:
            device = resolve(target_device, type_of(_tensors(outputs)))
    else:
        device = resolve(target_device, "")
    return _gather(outputs, device, dim, "output")


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    leaves: list[Any] = []
    take_apart(outputs, leaves)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, PackedSequence):
            yield leaf.data


def _gather(outputs: list[Any], device: torch.device, dim: int, path: str) -> Any:
    first = outputs[0]
    for kind, join in ((torch.Tensor, _gather_tensors), (PackedSequence, _gather_packed)):
        if isinstance(first, kind):
            if not all(isinstance(output, kind) for output in outputs):
                raise ValueError(_mismatch_text(path, outputs))
            return join(outputs, device, dim)
    parts = children_of(first)
    if parts is None:
        for output in outputs:
            cut = isinstance(output, (torch.Tensor, PackedSequence))
            if cut or children_of(output) is not None:
                raise ValueError(_mismatch_text(path, outputs))
        return first if all(_agree(first, output) for output in outputs[1:]) else outputs
    rebuild, keys, values = parts
    rows = [values]
    for output in outputs[1:]:
        others = children_of(output)
        alike = isinstance(output, dict) == isinstance(first, dict)
        if others is None or not alike or len(others[2]) != len(values):
            raise ValueError(_mismatch_text(path, outputs))
        if isinstance(first, dict):
            by_key = dict(zip(others[1], others[2], strict=True))
            if first.keys() != output.keys() or by_key.keys() != set(keys):
                raise ValueError(_mismatch_text(path, outputs))
            rows.append([by_key[key] for key in keys])
        else:
            rows.append(others[2])
    gathered = [
        _gather(list(column), device, dim, path_to(path, key))
        for key, column in zip(keys, zip(*rows, strict=True), strict=True)
    ]
    return rebuild(first, gathered)


def _mismatch_text(path: str, outputs: Sequence[Any]) -> str:
    found = ", ".join(
        f"{type(output).__name__}{_describe(output)} in replica {replica}"
        for replica, output in enumerate(outputs)
    )
    return (
        f"the replicas' outputs are not built alike, so they cannot be gathered: {path} is {found}"
    )


def _describe(output: Any) -> str:
    if isinstance(output, dict):
        return f" with {len(output)} keys {list(output)}"
    return f" of length {len(output)}" if isinstance(output, (list, tuple)) else ""


def _agree(first: Any, other: Any) -> bool:
    if first is other:
        return True
    if type(first) is not type(other):
        return False
    try:
        return bool(first == other) or bool(first != first and other != other)
    except Exception:
        # An array, say, does not compare to one truth: nothing is lost by keeping both.
        return False


def _gather_packed(outputs: Any, device: torch.device, dim: int) -> PackedSequence:
    return packed_sequences.join(outputs, device)


def _gather_tensors(
    tensors: Sequence[torch.Tensor], device: torch.device, dim: int
) -> torch.Tensor:
    scalars = dim == 0 and all(tensor.dim() == 0 for tensor in tensors)
    if scalars:
        warn_of_scalars()
    else:
        check_gatherable(tensors, dim)
    if scalars or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        result: torch.Tensor = apply(Gather, device, dim, *tensors)
        return result
    return gather_checked(tensors, dim, device)
