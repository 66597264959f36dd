"""The table of planted faults: name, place, what stands there, what shall stand there, the test.

To add one, add a line to the file that is about its place. Which test catches it matters: choose
the property that is about the thing that is broken, not one that happens to pass by.
"""

from tests.planted_faults.in_autocast import AUTOCAST
from tests.planted_faults.in_kept_state import KEPT
from tests.planted_faults.in_operators import OPERATORS
from tests.planted_faults.in_replicas import CALLS, GRADIENTS, REPLICATE
from tests.planted_faults.in_scatter_and_gather import GATHER, SCATTER
from tests.planted_faults.in_simulator import SIMULATOR
from tests.planted_faults.in_storage import GENERATORS, PINNING, STORAGE

FAULTS = [
    *SCATTER,
    *GATHER,
    *GRADIENTS,
    *REPLICATE,
    *CALLS,
    *KEPT,
    *SIMULATOR,
    *OPERATORS,
    *AUTOCAST,
    *STORAGE,
    *PINNING,
    *GENERATORS,
]
