"""Make DistributedDataParallel's Reducer time simulated devices by the CPU's timer.

The Reducer finds the timer of a device type in a table of C++ that libtorch_cpu exports, and warns
of a type that is not there. The CPU's is the right one: what simulated devices compute takes time
of the host.
"""

from __future__ import annotations

import ctypes
from typing import Any

from simgpu._native.memory import WORD, can_read, library, words
from simgpu._util.naming import PRIVATE_USE_1

_CPU = 0  # the device type, as C++ numbers it
_TABLE = "_ZN4c10d13TimerRegistryEv"
# operator[] of its map, from c10::DeviceType to a function that makes a timer for a c10::Device; a
# release says whether a node keeps the hash of its key, behind all that is read here.
_ENTRY = (
    "_ZNSt8__detail9_Map_baseIN3c1010DeviceTypeESt4pairIKS2_St8functionIFSt10unique_ptrIN4c10d5Timer"
    "ESt14default_deleteIS8_EENS1_6DeviceEEEESaISF_ENS_10_Select1stESt8equal_toIS2_ESt4hashIS2_ENS_18"
    "_Mod_range_hashingENS_20_Default_ranged_hashENS_20_Prime_rehash_policyENS_17_Hashtable_traitsILb"
    "{kept:d}ELb0ELb1EEELb1EEixERS4_"
)
_FIRST, _COUNT = 2, 3  # words of a table: its first node, and how many there are
_NEXT, _KEY, _FUNCTION = 0, 1, 2  # words of a node
_FUNCTION_WORDS = 4  # what is called, a second word of it, and two functions that C++ handles it by
_MOST = 64  # nodes of a table

# The device types, as C++ numbers them, that were entered here.
entered: set[int] = set()


def is_active() -> bool:
    """Whether the Reducer times simulated devices."""
    return PRIVATE_USE_1 in entered


def enter(kind: int = PRIVATE_USE_1) -> None:
    """Make devices of a type have the timer of the CPU, if the table is what it should be."""
    found = library("torch_cpu")
    table = _function(found, _TABLE)
    entry_of = _function(found, _ENTRY.format(kept=1)) or _function(found, _ENTRY.format(kept=0))
    if table is None or entry_of is None:
        return
    address = table()
    nodes = nodes_of(address)
    if kind in nodes or _CPU not in nodes:
        return
    timer = function_of(nodes[_CPU])
    if 0 in (timer[0], *timer[2:]):
        return
    entry = entry_of(ctypes.c_void_p(address), ctypes.byref(ctypes.c_int8(kind)))
    for place, word in enumerate(timer):
        words[(entry >> 3) + place] = word
    entered.add(kind)


def nodes_of(table: int) -> dict[int, int]:
    """Addresses of the entries of a table by device type; none where it is not such a table."""
    if not can_read(table, (_COUNT + 1) * WORD):
        return {}
    node, count = words[(table >> 3) + _FIRST], words[(table >> 3) + _COUNT]
    found: dict[int, int] = {}
    while node and len(found) < min(count, _MOST):
        if not can_read(node, (_FUNCTION + _FUNCTION_WORDS) * WORD):
            return {}
        found[words[(node >> 3) + _KEY] & 0xFF] = node
        node = words[(node >> 3) + _NEXT]
    return found if node == 0 and len(found) == count else {}


def function_of(node: int) -> list[int]:
    """The words of the function in an entry."""
    return [words[(node >> 3) + _FUNCTION + place] for place in range(_FUNCTION_WORDS)]


def _function(found: ctypes.CDLL | None, name: str) -> Any:
    """A function that returns an address, or None."""
    function = getattr(found, name, None)
    if function is not None:
        function.restype = ctypes.c_int64
    return function
