"""How many threads torch uses in a worker of pytest-xdist: one, unless the user says otherwise.

Only where a test asks for devices: the sessions of other suites stay as they are.
"""

from __future__ import annotations

import os
import sys


def use_one_thread() -> None:
    # xdist already runs one worker per core: more threads in each would only queue for the cores.
    if "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
