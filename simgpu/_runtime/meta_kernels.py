"""What an operator returns for arguments of some shapes and dtypes, told by its meta kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from simgpu._random.fill import Source
from simgpu._runtime.modes import without_modes

META = torch.device("meta")
_META_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
# Whose result is like their first argument; older releases have no meta kernel for them.
_LIKE_FIRST = {"aten::_standard_gamma", "aten::_sample_dirichlet"}


def call_on_meta(
    op: torch._ops.OpOverload, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """The results on the meta device, and the arguments that the meta kernel was given.

    Raises what the meta kernel raises; NotImplementedError where there is none.
    """
    with torch._C.DisableTorchFunction(), without_modes(), torch.no_grad():
        meta_args = [_on_meta(value) for value in args]
        meta_kwargs = {name: _on_meta(value) for name, value in kwargs.items()}
        if op._name in _LIKE_FIRST:
            found = meta_args[0]
        else:
            found = op._handle.redispatch_boxed(_META_KEYS, *meta_args, **meta_kwargs)
    return found, meta_args, meta_kwargs


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
        meta = torch._conj(meta) if value.is_conj() else meta
        return torch._neg_view(meta) if value.is_neg() else meta
    if isinstance(value, (list, tuple)):
        return [_on_meta(item) for item in value]
    if isinstance(value, (Source, torch.Generator)):  # shapes do not depend on what is drawn
        return None
    return META if isinstance(value, torch.device) else value
