"""Faults planted in how groups of ranks that are threads are split."""

from tests.distributed import test_splits_of_groups as splits
from tests.support.plant import fault
from tests.support.worlds import with_devices

SPLIT = "simgpu._ranks.splits:_split_group"
PARTS = with_devices(splits.test_each_part_of_a_group_adds_its_own)

SPLITS_OF_GROUPS = [
    fault(
        "a part of a group of NCCL has other rules",
        SPLIT,
        'kind == "nccl" else',
        'kind != "nccl" else',
        PARTS,
    ),
    fault(
        "a rank of a part has its number in the whole",
        SPLIT,
        "list(ranks).index(self.rank()), len(ranks)",
        "self.rank(), len(ranks)",
        PARTS,
        raises=Exception,
    ),
    fault(
        "who is in no part is in the one that it names",
        SPLIT,
        "if self.rank() not in ranks:",
        "if False:",
        PARTS,
        raises=Exception,
    ),
    fault(
        "members of a part meet by a name that each of them has",
        "simgpu._distributed.communicators:Communicator._carried_by",
        "splitting.agreed_name(group)",
        "group.group_name",
        PARTS,
        raises=Exception,
    ),
    fault(
        "a part has the backend of devices alone",
        SPLIT,
        "device_types or self._device_types}",
        'device_types or self._device_types if device.type != "cpu"}',
        PARTS,
        raises=Exception,
    ),
    fault(
        "a copy of options is the options",
        "simgpu._ranks.splits:_copied",
        "copy = type(self)()",
        "copy = self",
        with_devices(splits.test_options_of_a_group_are_copied),
    ),
]
