"""The `module.` prefix that wrapping puts before every name in a state dict."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

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
    return _renamed(state_dict, lambda name: name.removeprefix(prefix), prefix)


def add_prefix(state_dict: Mapping[str, Any], prefix: str = PREFIX) -> dict[str, Any]:
    """A state dict of a module, as a wrapper around it would give it.

    The result is a new dict of the same type over the same tensors, versions of modules
    (`_metadata`) included.
    """
    return _renamed(state_dict, lambda name: prefix + name, prefix)


def _renamed(state_dict: Mapping[str, Any], rename: Any, prefix: str) -> dict[str, Any]:
    result: Any = copy.copy(state_dict)
    result.clear()
    for name, value in state_dict.items():
        if rename(name) in result:
            raise ValueError(
                f"the state dict has {rename(name)!r} both with and without the prefix {prefix!r}"
            )
        result[rename(name)] = value
    metadata = getattr(state_dict, "_metadata", None)
    if metadata is not None:
        own = type(metadata)()
        for name, value in metadata.items():
            # The module itself is named by the prefix without its dot, or by nothing.
            new = rename(name + ".")[:-1]
            own[new] = value
        result._metadata = own
    return result  # type: ignore[no-any-return]
