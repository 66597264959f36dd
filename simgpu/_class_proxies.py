"""Proxy classes: `torch.Stream` becomes our subclass of it, and `isinstance` answers as before.

A class written in C++ cannot be given another `__new__`. So a subclass of it takes over its name in
torch, and answers `isinstance` and `issubclass` as the stock class would.

May import: nothing.
"""

from __future__ import annotations

from typing import Any


class ClassProxy(type):
    """Metaclass of a proxy: whose instances are all those of the class in its attribute `_stock`.

    A class that someone derives from a proxy has no `_stock` of its own, and is an ordinary class.
    """

    _stock: Any

    def __instancecheck__(cls, instance: object) -> bool:
        stock = cls.__dict__.get("_stock")
        return super().__instancecheck__(instance) if stock is None else isinstance(instance, stock)

    def __subclasscheck__(cls, subclass: type) -> bool:
        stock = cls.__dict__.get("_stock")
        return super().__subclasscheck__(subclass) if stock is None else issubclass(subclass, stock)


def copy_identity(proxy: type, stock: type) -> None:
    """Give `proxy` the name, module and docstring of `stock`, for `repr` and pickle."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(proxy, name, getattr(stock, name))
