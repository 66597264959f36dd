"""`Form`: what tells one tensor at an address from another: its shape, strides, dtype and signs.

Equal forms are one object, so that they are compared and looked up as fast as any object.
"""

from __future__ import annotations

import torch

_MOST = 4096
_forms: dict[tuple[object, ...], Form] = {}


class Form:
    """One form; shape and strides are in the key that it is found by (`form_of`)."""

    __slots__ = ("dtype", "is_conj", "is_neg")

    def __init__(self, dtype: torch.dtype, is_conj: bool = False, is_neg: bool = False) -> None:
        self.dtype, self.is_conj, self.is_neg = dtype, is_conj, is_neg


def form_of(tensor: torch.Tensor) -> Form:
    """The form of a dense tensor."""
    dtype = tensor.dtype
    signs: tuple[bool, ...] = ()
    if dtype.is_complex or tensor.is_neg():  # a real one, of the imaginary parts of conjugates
        signs = tensor.is_conj(), tensor.is_neg()
    key = tensor.shape, tensor.stride(), dtype, signs
    form = _forms.get(key)
    if form is None:
        if len(_forms) >= _MOST:
            _forms.clear()  # those in use live on, and are equal to none that comes later
        form = _forms[key] = Form(dtype, *signs)
    return form
