"""What devices are called: the constants of the device type, and the name that a program knows."""

from __future__ import annotations

import re

DEVICE_TYPE = "simgpu"

# Host labels are 1; the label of simgpu:i is LABELS[i].
MAX_DEVICES = 64

# Where a text names a device type as a program would write it, and where as a trade name.
_CODE = re.compile(
    rf"""(?x) \b{DEVICE_TYPE}(?= :\d | ['"] | \ (?:device|tensor|backend|event)s?\b )
    | (?<=torch\.) {DEVICE_TYPE}\b | (?<=\ type\ ) {DEVICE_TYPE}\b
    | (?<=accelerator\ ) {DEVICE_TYPE}\b"""
)
_NAME = re.compile(
    rf"""(?x) (?<=wrapper_) {DEVICE_TYPE}(?=_) | \b{DEVICE_TYPE}(?= [A-Z] | \ error | \ out\ of )
    | (?<=re-initialize\ ) {DEVICE_TYPE}\b | (?<=To\ use\ ) {DEVICE_TYPE}\b"""
)


def visible_text(text: str) -> str:
    """`text` as the program may read it: with the devices by the name that it knows."""
    if len(names) == 1 or DEVICE_TYPE not in text:
        return text
    return _NAME.sub("CUDA", _CODE.sub("cuda", text))


PRIVATE_USE_1 = 20  # the device type, as C++ numbers it

# The device types that mean simulated devices; "cuda" is one of them under `as_cuda`.
names = frozenset({DEVICE_TYPE})
