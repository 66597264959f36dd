"""Faults planted in the commands and what they show: variables, timeline, table, patches."""

import tempfile
from pathlib import Path

from tests.clients import test_support as clients
from tests.support.plant import fault
from tests.tools import test_command_line as command_line
from tests.tools import test_patches as patches
from tests.tools import test_summary as summary
from tests.tools import test_timeline as timeline
from tests.tools import test_variables as told


def launchers() -> None:
    """The property of the options that look at one process, with scripts of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for name in command_line.SCRIPTS:
            (Path(folder) / name).write_text("")
        command_line.test_no_option_looks_at_a_launcher_alone(Path(folder))


TOOLS = [
    fault(
        "a wrong model is told as a wrong memory",
        "simgpu._startup.process_devices:start_process_devices",
        "variables.told_by(variables.MODEL)",
        "variables.told_by(variables.MEMORY)",
        told.test_a_wrong_sort_of_device_is_told_by_who_said_it,
    ),
    fault(
        "whatever is said of the name of CUDA, the devices go by it",
        "simgpu._startup.variables:as_cuda",
        'value.replace("0", "")',
        "value",
        told.test_devices_go_by_the_name_of_cuda_where_that_is_said,
    ),
    fault(
        "an index past the last device of a process is told without a way out",
        "simgpu._runtime.world:device",
        "{there}{_world.more}",
        "{there}",
        told.test_an_index_past_the_last_device_is_told_what_says_how_many,
    ),
    fault(
        "a wrong option is told as a variable that nobody has set",
        "simgpu._cli.run_script:make_devices",
        "if told[name] is not None and",
        "if told[name] is None and",
        told.test_a_wrong_sort_of_device_is_told_by_who_said_it,
    ),
    fault(
        "a launcher that is a script is looked at alone",
        "simgpu._cli.run:_refuse_to_watch_a_launcher",
        "os.path.basename(program.text)",
        "program.text",
        launchers,
    ),
    fault(
        "a command that needs a package goes on without it",
        "simgpu._cli.compare:start",
        'if missing_packages("comparing", NEEDED):',
        "if False:",
        command_line.test_a_command_says_which_packages_are_missing,
    ),
    fault(
        "fresh memory that nobody fills counts as a kernel in the table",
        "simgpu._profiling.summary:Totals.after_launch",
        'elif record.kind == "kernel":',
        "else:",
        summary.test_all_that_count_kernels_count_those_that_cuda_launches,
    ),
    fault(
        "a resized copy counts as no kernel",
        "simgpu._runtime.launch:_launch_watched",
        "kernel.kind if route is None",
        '("memory" if kernel.name == "resize" else kernel.kind) if route is None',
        summary.test_all_that_count_kernels_count_those_that_cuda_launches,
    ),
    fault(
        "a launch that fails may be one of fresh memory",
        "simgpu._simulation.failures.faults:Faults.before_launch",
        'if launch.kind == "memory":',
        "if False:",
        summary.test_all_that_count_kernels_count_those_that_cuda_launches,
        raises=KeyError,
    ),
    fault(
        "a late row is put in place although it was undone",
        "simgpu._patches:_Imports.wait",
        "return lambda: calls.remove(call) if call in calls else None",
        "return lambda: None",
        patches.test_a_late_row_waits_for_its_module,
    ),
    fault(
        "a late row of a class waits for a module of its name",
        "simgpu._patches:Patch._imported",
        "getattr(module, name, None) if name else module",
        "module",
        patches.test_a_late_row_waits_for_its_module,
    ),
    fault(
        "a timeline is written to the folder that the program went to",
        "simgpu._profiling.watch:watch.__init__",
        "path and os.path.abspath(path), table",
        "path, table",
        timeline.test_a_program_may_go_to_another_folder_and_start_ranks,
    ),
    fault(
        "a program that starts ranks is taken for one of them",
        "simgpu._profiling.watch:watch.__init__",
        "dict(os.environ)",
        "os.environ",
        timeline.test_a_program_may_go_to_another_folder_and_start_ranks,
    ),
    fault(
        "the memory of a copy's target is shown",
        "simgpu._profiling.chrome_trace:Timeline.as_json",
        '"ts": at + took, "pid": device + 1}',
        '"ts": at + took, "pid": target + 1}',
        timeline.test_a_counter_shows_the_memory_of_its_device,
    ),
    fault(
        "the memory of the first device is shown",
        "simgpu._runtime.launch:_record",
        "world.active_devices[index].allocated",
        "world.active_devices[0].allocated",
        timeline.test_a_counter_shows_the_memory_of_its_device,
    ),
    fault(
        "nothing is counted behind a model that failed",
        "simgpu._profiling.module_inputs:Inputs.watched",
        "per_thread.inside = False",
        "pass",
        summary.test_a_model_that_fails_leaves_the_next_one_counted,
    ),
    fault(
        "the oldest replacement is put back first",
        "simgpu._patches:Patches.undo",
        "self._undo.pop()()",
        "self._undo.pop(0)()",
        patches.test_all_is_put_back_however_often_an_attribute_was_replaced,
    ),
    fault(
        "a library whose import fails for torchvision's sake is taken for whole",
        "tests.clients.support:why_not",
        "return why_not(other)",
        "return None",
        clients.test_a_broken_torchvision_is_a_reason_for_all_that_import_it,
    ),
]
