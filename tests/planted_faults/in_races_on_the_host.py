"""Faults planted in how the host's use of pinned memory is watched, and what makes it wait."""

from functools import partial

from tests.simulator.races import test_host as host
from tests.simulator.races import test_indexing as indexing
from tests.simulator.races import test_programs as races
from tests.simulator.races import test_reports as reports
from tests.support.plant import fault

HOST = "simgpu._simulation.races.host:HostAccesses"
DETECTOR = "simgpu._simulation.races.detector:Detector"

programs = races.test_what_is_missing_is_reported_and_nothing_else

RACES_ON_THE_HOST = [
    fault(
        "a race names the operator that stands for what reads memory",
        "simgpu._simulation.races.host:_Readers.__torch_function__",
        'f"Tensor.{func.__name__}"',
        '"clone"',
        reports.test_what_reads_pinned_memory_goes_by_the_name_that_the_program_has_for_it,
    ),
    fault(
        "the host is not watched from the first copy of pinned memory on",
        f"{DETECTOR}._copy_of_host",
        "self.host.begin()",
        "pass",
        partial(programs, name="pinned_result_read"),
    ),
    fault(
        "the host is watched in the modes of the program alone",
        f"{HOST}.__enter__",
        "if self._are_there():",
        "if False:",
        host.test_the_host_is_watched_while_devices_use_its_memory,
        raises=Exception,
    ),
    fault(
        "the end of a backward pass is the end of what the host is watched by",
        "simgpu._runtime.engine_waits:followed",
        "for passed in hooks.backward_passed:",
        "for passed in ():",
        host.test_a_gradient_that_comes_to_the_host_is_not_read_at_once,
        raises=Exception,
    ),
    fault(
        "modes that PyTorch took away are left all the same",
        f"{HOST}._put_back",
        "stack.push(mode)",
        "pass",
        host.test_a_gradient_that_comes_to_the_host_is_not_read_at_once,
        raises=Exception,
    ),
    fault(
        "a block leaves the mode that is the last one, whose ever it is",
        f"{HOST}.__exit__",
        "stack.put_on_top(mode)",
        "mode in stack.modes() or stack.push(mode)",
        host.test_a_block_within_a_block_takes_its_modes_along,
        raises=Exception,
    ),
    fault(
        "operators are not seen after inference_mode",
        "simgpu._simulation.races.host:_Watched.wake",
        "_include(key, True)",
        "pass",
        host.test_the_host_is_watched_while_devices_use_its_memory,
    ),
    fault(
        "the host is not watched later if it could not be at first",
        f"{DETECTOR}.launched",
        "if self._storages:",
        "if False:",
        host.test_the_host_is_watched_while_devices_use_its_memory,
    ),
    fault(
        "to ask whether memory is pinned is to read it",
        "simgpu._simulation.races.accesses:touched",
        "endswith(_DESCRIPTIVE)",
        'endswith("_like")',
        host.test_a_question_about_pinned_memory_is_no_access,
        keepers=("simgpu._simulation.races.accesses:touched",),
    ),
    fault(
        "the host does what a stream copies",
        f"{DETECTOR}.host_touches",
        "or is_copy_of_device(op, args, kwargs)",
        "",
        host.test_copies_through_pinned_memory_are_in_the_order_of_their_streams,
    ),
    fault(
        "copy_ waits whatever it is told",
        "simgpu._runtime.launch:is_non_blocking",
        "return bool(launch.args[2])",
        "return False",
        host.test_copies_through_pinned_memory_are_in_the_order_of_their_streams,
    ),
    fault(
        "a copy that blocks has no part in pinned memory",
        f"{DETECTOR}._copy_of_host",
        "self._pinned.at(span[0])",
        "None",
        host.test_copies_through_pinned_memory_are_in_the_order_of_their_streams,
    ),
    fault(
        "the host writes running statistics whether it trains or not",
        f"{DETECTOR}.host_touches",
        "touched(op, trains(op, args, kwargs))",
        "touched(op)",
        host.test_the_host_writes_running_statistics_where_it_trains,
    ),
    *(
        fault(
            what,
            f"simgpu._runtime.operators:{name}",
            line,
            planted,
            indexing.test_the_host_waits_for_masks_alone,
        )
        for what, name, line, planted in (
            (
                "the host waits for a kernel that indexes, whatever by",
                "waits_for_values",
                "if _name(op) in _INDEXING:",
                "if False:",
            ),
            (
                "the host waits for a mask that a number is assigned to",
                "waits_for_values",
                "and not is_number",
                "",
            ),
            ("a mask is an index like others", "has_masks", "index.dtype in _MASKS", "False"),
            (
                "a mask of bytes is an index like others",
                "has_masks",
                "index.dtype in _MASKS",
                "index.dtype is torch.bool",
            ),
        )
    ),
    fault(
        "to look at memory otherwise is to read it",
        "simgpu._runtime.operators:is_view",
        "bool(aliases) and",
        "False and",
        host.test_a_question_about_pinned_memory_is_no_access,
        keepers=("simgpu._simulation.races.accesses:touched",),
    ),
]
