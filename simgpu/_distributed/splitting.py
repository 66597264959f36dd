"""Parts of a group, which C++ makes of gloo's own backends.

C++ hands the options of the whole to its parts, and changes them: after the first split, the whole
would look for its ranks among those of the part, past the end of the list. A list that nobody has
filled it reads as it is, unless the backend is the first one of the process.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch._C import _distributed_c10d as c10d

_Gloo: Any = c10d.ProcessGroupGloo
_options_of = _Gloo.options.fget  # ProcessGroupNCCL shows others


def copied(options: Any, _: Any = None) -> Any:
    """Other options of gloo, with the same in them."""
    copy = _Gloo._Options()
    for name in ("_devices", "_threads", "_timeout", "global_ranks_in_group", "group_name"):
        setattr(copy, name, getattr(options, name))
    return copy


def options_of_parts(backends: list[Any]) -> Any:
    """What the parts of a group can be made with, whose backends are these; None if not of gloo."""
    if not all(isinstance(backend, _Gloo) for backend in backends):
        return None
    for backend in backends:
        ranks = backend.options.global_ranks_in_group or range(backend.size())
        _options_of(backend).global_ranks_in_group = list(ranks)
    return copied(_options_of(backends[0]))


_agreed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_times: weakref.WeakKeyDictionary[Any, Counter[tuple[int, ...]]] = weakref.WeakKeyDictionary()


def meeting_point(whole: Any, ranks: Sequence[int]) -> str:
    """Where the members of the next part with these ranks find each other.

    torch.distributed names a part by how many groups a rank knows, which is another number for
    another rank. NCCL asks for no name, gloo does.
    """
    times = _times.setdefault(whole, Counter())
    members = tuple(sorted(ranks))
    times[members] += 1
    return f"{agreed_name(whole)}:{'_'.join(map(str, members))}:{times[members]}"


def agreed_name(group: Any) -> str:
    """The name of a group that all of its ranks know; of a part, where its members met."""
    name: str = _agreed.get(group, group.group_name)
    return name


def rename(part: Any, met_at: str, name: str | None) -> None:
    """Give a part the name that this rank knows it by, once it has been made."""
    _agreed[part] = met_at
    if name is not None:
        part._set_group_name(name)
