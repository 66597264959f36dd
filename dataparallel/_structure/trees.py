"""Pytrees: take nested inputs and outputs apart into tensors, and build them again, type for type.

A node is a namedtuple, tuple, list, dict, deque, dataclass, or any subclass of these, or a type
registered with torch.utils._pytree; everything else is a leaf. A rebuilt node has the type of the
one taken apart and keeps what else belongs to it (a defaultdict's factory, a subclass's attributes,
fields that are no init arguments), without its constructor being run again where that can be
avoided. An attribute that is one of its children, as in dicts whose items are attributes too, is
the new child.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import SUPPORTED_NODES

# Containers of the standard library are registered with torch too; they are rebuilt here.
_STANDARD_LIBRARY = ("builtins", "collections")

# A PackedSequence is a namedtuple to Python, and a size is a tuple of numbers that belong together.
_LEAVES = (PackedSequence, torch.Size, str, bytes)


class Field(str):
    """The name of a child that is an attribute; a plain str is the key of one in a dict."""


class Node(NamedTuple):
    """A structure without its leaves; a leaf is None in `children`."""

    example: Any
    rebuild: Callable[[Any, list[Any]], Any]
    keys: Sequence[Any]  # how each child is reached: an index, a key, or a Field
    children: list[Node | None]


def is_namedtuple(obj: Any) -> bool:
    """Whether `obj` is an instance of a class made by collections.namedtuple or the like."""
    return isinstance(obj, tuple) and hasattr(obj, "_fields") and hasattr(obj, "_make")


def children_of(
    obj: Any,
) -> tuple[Callable[[Any, list[Any]], Any], Sequence[Any], Sequence[Any]] | None:
    """How to rebuild a node, the keys of its children and the children; None for a leaf."""
    kind = type(obj)
    if kind is tuple:
        return _rebuild_plain_tuple, range(len(obj)), obj
    if kind is list:
        return _rebuild_plain_list, range(len(obj)), obj
    if kind is dict:
        return _rebuild_mapping, list(obj), list(obj.values())
    if kind in _LEAVES or isinstance(obj, (torch.Tensor, torch.nn.Module)):
        return None
    if kind in SUPPORTED_NODES and kind.__module__ not in _STANDARD_LIBRARY:
        values, _ = SUPPORTED_NODES[kind].flatten_fn(obj)
        return _rebuild_registered, _keys_of_registered(obj, values), values
    if is_namedtuple(obj):
        return _rebuild_namedtuple, [Field(name) for name in obj._fields], list(obj)
    if isinstance(obj, dict):
        return _rebuild_mapping, list(obj), list(obj.values())
    if isinstance(obj, tuple):
        return _rebuild_tuple, range(len(obj)), list(obj)
    if isinstance(obj, list):
        return _rebuild_list, range(len(obj)), list(obj)
    if isinstance(obj, deque):
        return _rebuild_deque, range(len(obj)), list(obj)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        fields = [Field(each.name) for each in dataclasses.fields(obj) if hasattr(obj, each.name)]
        return _rebuild_dataclass, fields, [getattr(obj, name) for name in fields]
    return None


def _keys_of_registered(obj: Any, values: Sequence[Any]) -> Sequence[Any]:
    """The keys of a dict whose values are the children, in the children's order, else indices."""
    if not isinstance(obj, dict) or len(obj) != len(values):
        return range(len(values))
    keys: dict[int, list[Any]] = {}
    for key, value in obj.items():
        keys.setdefault(id(value), []).append(key)
    try:
        return [keys[id(value)].pop() for value in values]
    except (KeyError, IndexError):  # flattening gives other objects than the dict holds
        return range(len(values))


def _rebuild_plain_tuple(example: Any, values: list[Any]) -> Any:
    return tuple(values)


def _rebuild_plain_list(example: Any, values: list[Any]) -> Any:
    return values


def _rebuild_mapping(example: Any, values: list[Any]) -> Any:
    if type(example) is dict:
        return dict(zip(example, values, strict=True))
    result = copy.copy(example)
    for key, value in zip(example, values, strict=True):
        result[key] = value
    return _with_children(result, example, example.items(), values)


def _rebuild_namedtuple(example: Any, values: list[Any]) -> Any:
    return _with_attributes(type(example)._make(values), example, values)


def _rebuild_tuple(example: Any, values: list[Any]) -> Any:
    kind: Any = type(example)
    if hasattr(kind, "n_sequence_fields"):  # a struct sequence, such as os.stat_result
        return kind(values)
    return _with_attributes(tuple.__new__(kind, values), example, values)


def _rebuild_list(example: Any, values: list[Any]) -> Any:
    result = copy.copy(example)
    result[:] = values
    return _with_children(result, example, enumerate(example), values)


def _rebuild_deque(example: Any, values: list[Any]) -> Any:
    kind: Any = type(example)
    result = kind.__new__(kind)  # a copy would run the constructor of a subclass
    deque.__init__(result, values, example.maxlen)
    return _with_attributes(result, example, values)


def _rebuild_registered(example: Any, values: list[Any]) -> Any:
    node = SUPPORTED_NODES[type(example)]
    _, context = node.flatten_fn(example)
    return node.unflatten_fn(values, context)


def _rebuild_dataclass(example: Any, values: list[Any]) -> Any:
    result = copy.copy(example)
    names = [field.name for field in dataclasses.fields(example) if hasattr(example, field.name)]
    for name, value in zip(names, values, strict=True):
        object.__setattr__(result, name, value)
    given = [(name, getattr(example, name)) for name in names]
    return _with_children(result, example, given, values)


def _with_attributes(result: Any, example: Any, values: list[Any]) -> Any:
    if getattr(example, "__dict__", None):
        result.__dict__.update(example.__dict__)
    return _with_children(result, example, enumerate(example), values)


def _with_children(
    result: Any,
    example: Any,
    children: Iterable[tuple[Any, Any]],
    values: Sequence[Any],
) -> Any:
    """`result`, whose attributes are its own children where the example's were the example's.

    `children` are the example's with their names, and `values` what has become of them. One object
    may be several children, which have become different ones: an attribute is the one of its name
    then. A constant (a number, a dtype, a function) is a child only by its name: where an
    attribute of another name has the same one, that says nothing.
    """
    attributes = getattr(example, "__dict__", None)
    if attributes is example:  # self.__dict__ = self
        result.__dict__ = result
    elif attributes:
        new: dict[Any, Any] = {}
        for (name, child), value in zip(children, values, strict=True):
            new[name, id(child)] = value
            if isinstance(child, (torch.Tensor, PackedSequence)) or children_of(child):
                new[id(child)] = value
        for name, value in attributes.items():
            own = (name, id(value))
            key = own if own in new else id(value)
            if key in new:
                result.__dict__[name] = new[key]
    return result


def take_apart(obj: Any, leaves: list[Any]) -> Node | None:
    """Append the leaves of `obj` to `leaves` and return what is left of it."""
    parts = children_of(obj)
    # An empty container is handed on as it is, like any other object without tensors.
    if parts is None or len(parts[1]) == 0:
        leaves.append(obj)
        return None
    rebuild, keys, values = parts
    return Node(obj, rebuild, keys, [take_apart(value, leaves) for value in values])


def put_together(node: Node | None, leaves: Iterator[Any]) -> Any:
    """Build a structure again from its leaves, in the order in which they were taken."""
    if node is None:
        return next(leaves)
    return node.rebuild(node.example, [put_together(child, leaves) for child in node.children])


def paths(node: Node | None, prefix: str) -> Iterator[str]:
    """Where each leaf was, such as `inputs[0]['mask']`, in the order in which they were taken."""
    if node is None:
        yield prefix
        return
    for key, child in zip(node.keys, node.children, strict=True):
        yield from paths(child, path_to(prefix, key))


def path_to(parent: str, key: Any) -> str:
    """Where the child with that key is, in the words of the program that has its parent."""
    return f"{parent}.{key}" if isinstance(key, Field) else f"{parent}[{key!r}]"
