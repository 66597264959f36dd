"""Classes that stand in for classes of PyTorch, whose instances are instances of them too."""

from __future__ import annotations

from typing import Any


class ClassProxy(type):
    """The type of a class that stands in for the class in its attribute `_stock`.

    For classes derived from the one that stands in, nothing is special.
    """

    _stock: Any

    def __instancecheck__(cls, instance: object) -> bool:
        stock = cls.__dict__.get("_stock")
        return super().__instancecheck__(instance) if stock is None else isinstance(instance, stock)

    def __subclasscheck__(cls, subclass: type) -> bool:
        stock = cls.__dict__.get("_stock")
        return super().__subclasscheck__(subclass) if stock is None else issubclass(subclass, stock)


def copy_identity(proxy: type, stock: type) -> None:
    """Let `proxy` say of itself what `stock` says, so that it is found by that name."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(proxy, name, getattr(stock, name))
