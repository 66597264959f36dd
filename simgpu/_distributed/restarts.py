"""What the ranks that torchrun starts again read: nothing that those before them have written.

torchrun keeps one store for all its attempts, in which the addresses of the last one still stand:
a rank that is faster than the others connects to processes that have ended, and fails or waits
until the timeout. That is a fault of PyTorch, which NCCL's ranks meet too (pytorch issue 135712).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import PrefixStore


def apart(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`_create_c10d_store` with the keys of each attempt apart from those of the others.

    Where there are several machines, each of them counts its restarts by itself: the store is left
    as it is.
    """

    @functools.wraps(stock)
    def create(*args: Any, **kwargs: Any) -> Any:
        store = stock(*args, **kwargs)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if shared and attempt != "0" and os.environ.get("GROUP_WORLD_SIZE") == "1":
            return PrefixStore(f"restart {attempt}", store)
        return store

    return create
