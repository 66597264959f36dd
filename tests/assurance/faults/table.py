"""All planted faults: a mistake, its function, the edit, and the test that has to fail."""

from tests.assurance.faults.in_dataparallel import DATAPARALLEL
from tests.assurance.faults.in_order import ORDER
from tests.assurance.faults.in_ranks import IN_RANKS
from tests.assurance.faults.in_simulator import SIMULATOR
from tests.assurance.faults.in_waits import WAITS

FAULTS = [*DATAPARALLEL, *WAITS, *SIMULATOR, *ORDER, *IN_RANKS]
