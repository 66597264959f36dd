"""Add and remove the `module.` prefix of the names in a state dict of a wrapped module.

May import: `torch`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Module

__all__ = ["add_prefix", "strip_prefix"]

PREFIX = "module."


def strip_prefix(state_dict: Mapping[str, Any], prefix: str = PREFIX) -> dict[str, Any]:
    """A state dict of a wrapped module, as the module itself would give it.

    Names without the prefix stay as they are, so a checkpoint of either kind may be given. The
    result is a new dict of the same type over the same tensors, versions of modules
    (`_metadata`) included.

    Raises:
        ValueError: two names that would become one.
    """
    result = _renamed(state_dict, lambda name: name.removeprefix(prefix), prefix)
    metadata = getattr(state_dict, "_metadata", None)
    if metadata is not None:
        wrapped, enclosing = _module_names(prefix)
        result._metadata = type(metadata)()
        for name, value in metadata.items():
            if name not in enclosing or wrapped not in metadata:
                stripped = "" if name == wrapped else name.removeprefix(prefix)
                result._metadata[stripped] = value
    return result  # type: ignore[no-any-return]


def add_prefix(state_dict: Mapping[str, Any], prefix: str = PREFIX) -> dict[str, Any]:
    """A state dict of a module, as a wrapper around it would give it.

    The result is a new dict of the same type over the same tensors, versions of modules
    (`_metadata`) included; the modules that the prefix names get the version of `Module`.
    """
    result = _renamed(state_dict, lambda name: prefix + name, prefix)
    metadata = getattr(state_dict, "_metadata", None)
    if metadata is not None:
        wrapped, enclosing = _module_names(prefix)
        result._metadata = type(metadata)()
        for name in enclosing:
            result._metadata[name] = {"version": Module._version}
        for name, value in metadata.items():
            result._metadata[prefix + name if name else wrapped] = value
    return result  # type: ignore[no-any-return]


def _module_names(prefix: str) -> tuple[str, list[str]]:
    """What a prefix calls the module itself, and the modules around it from the outermost on."""
    wrapped = prefix.removesuffix(".")
    parts = wrapped.split(".") if wrapped else []
    return wrapped, [".".join(parts[:depth]) for depth in range(len(parts))]


def _renamed(state_dict: Mapping[str, Any], rename: Callable[[str], str], prefix: str) -> Any:
    result: Any = copy.copy(state_dict)
    result.clear()
    for name, value in state_dict.items():
        if rename(name) in result:
            raise ValueError(
                f"the state dict has {rename(name)!r} both with and without the prefix {prefix!r}"
            )
        result[rename(name)] = value
    return result
