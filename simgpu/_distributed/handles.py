"""The sum by which DistributedDataParallel counts the ranks that have not joined yet.

Its Reducer waits for that call and asks for its future afterwards. C++ holds half of the Work only:
here the Reducer has the other half too.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def keeping(stock: Callable[..., None]) -> Callable[..., None]:
    """`Reducer._set_forward_pass_work_handle`, which keeps the Work until the next one comes."""

    @functools.wraps(stock)
    def set_handle(self: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        _works[self] = work
        stock(self, work, *args, **kwargs)

    return set_handle
