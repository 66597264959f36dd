"""Faults planted in the tools: pytest plugin, fuzzing, strategies, timeline, table, patches."""

import argparse
import signal
import tempfile
from functools import partial
from pathlib import Path

import pytest

from tests.clients import test_support as clients
from tests.support.plant import fault
from tests.tools import test_command_line as command_line
from tests.tools import test_failures as failing
from tests.tools import test_foreign_suites as foreign
from tests.tools import test_fuzz as fuzzing
from tests.tools import test_fuzz_report as fuzz_report
from tests.tools import test_markers as marked
from tests.tools import test_patches as patches
from tests.tools import test_plugin as plugin
from tests.tools import test_plugin_models as named
from tests.tools import test_plugin_workers as workers
from tests.tools import test_pools as pools
from tests.tools import test_strategies as drawn
from tests.tools import test_streams_options as streams
from tests.tools import test_summary as summary
from tests.tools import test_tallies as tallies
from tests.tools import test_timeline as timeline
from tests.tools import test_variables as told
from tests.tools import test_wrapping as wrapping

TALLY = "simgpu._fuzz.tally:Tally"


def launchers() -> None:
    """The property of the options that look at one process, with scripts of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for name in command_line.SCRIPTS:
            (Path(folder) / name).write_text("")
        command_line.test_no_option_looks_at_a_launcher_alone(Path(folder))


def drawn_afresh(check, **arguments):
    """A check of strategies, of which none is kept from before, nor for later."""
    public = drawn.strategies
    kept = (public.dims, public.batches, public._batch_sizes, public._sizes)
    for function in kept:
        function.cache_clear()
    try:
        check(**arguments)
    finally:
        for function in kept:
            function.cache_clear()


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
        "a test that has no devices is told of none once others have had some",
        "simgpu._pytest.hints:hint_for",
        "or _NO_DEVICES in told",
        "",
        plugin.test_nobody_is_told_to_take_what_he_has,
    ),
    fault(
        "a test with devices by the name of CUDA is told of them",
        "simgpu._pytest.hints:hint_for",
        "if as_cuda:",
        "if not as_cuda:",
        plugin.test_nobody_is_told_to_take_what_he_has,
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
        "the header does not say that races are looked for",
        "simgpu._pytest.header:looked_for",
        '"--races": options.races,',
        "",
        streams.test_the_header_says_what_is_looked_for,
    ),
    fault(
        "the header does not say which schedule tests run in",
        "simgpu._pytest.header:looked_for",
        'f"--schedule {options.schedule}": options.schedule,',
        "",
        streams.test_the_header_says_what_is_looked_for,
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
        "the environment goes before an option",
        "simgpu._pytest.options:DeviceOptions.model_by_device",
        "variables.by_device(self.model) or variables.device_model()",
        "variables.device_model() or variables.by_device(self.model)",
        named.test_an_option_goes_before_the_environment,
    ),
    fault(
        "a suite may have no option that must be",
        "simgpu._pytest.short_option:ShortOption.add_where_free",
        "[tried, *args]",
        "[tried]",
        named.test_whatever_option_a_suite_has_it_stays_theirs,
        raises=pytest.UsageError,
    ),
    fault(
        "an option that a suite adds while it is collected is a conflict",
        "simgpu._pytest.short_option:ShortOption.take_away",
        "if options is not None:",
        "if False:",
        named.test_whatever_option_a_suite_has_it_stays_theirs,
        raises=Exception,
    ),
    fault(
        "an option that a suite has ends its session where it does not know A100",
        "simgpu._pytest.short_option:ShortOption.add_where_free",
        "except pytest.UsageError as error:",
        "except ZeroDivisionError as error:",
        named.test_whatever_option_a_suite_has_it_stays_theirs,
        raises=pytest.UsageError,
    ),
    fault(
        "a marker of a suite takes ours whose name its own begins with",
        "simgpu._pytest.marker:is_ours",
        "if _name_in(line) == name]",
        "if line.startswith(name)]",
        marked.test_a_marker_of_ranks_that_runs_none_is_an_error,
    ),
    fault(
        "a marker that a suite declares with spaces is ours",
        "simgpu._pytest.marker:_name_in",
        ".strip()",
        "",
        marked.test_a_suite_may_declare_a_marker_in_any_way,
    ),
    fault(
        "a property that is async passes, and nothing of it ran",
        "simgpu._pytest.wrapping:wrap_test",
        'getattr(getattr(item.obj, "hypothesis", None), "inner_test", item.obj)',
        "item.obj",
        wrapping.test_an_async_test_is_refused_and_any_other_runs_in_it,
    ),
    fault(
        "a decorated test that is async passes, and nothing of it ran",
        "simgpu._pytest.wrapping:_run_by_its_call",
        ' or hasattr(result, "__aiter__"):',
        ":",
        wrapping.test_an_async_test_is_refused_and_any_other_runs_in_it,
    ),
    fault(
        "a marker is left out by another one",
        "simgpu._pytest.wrapping:wrap_test",
        ' if what[0] == "-" else ""',
        "",
        wrapping.test_an_async_test_is_refused_and_any_other_runs_in_it,
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
        "a worker whose name has a large number is past the last one",
        "simgpu._pytest.options:read_options",
        "int(number[0]) % count if",
        "int(number[0]) if",
        workers.test_a_worker_may_have_any_name,
    ),
    fault(
        "the letters before a worker's number are those of pytest-xdist",
        "simgpu._pytest.options:read_options",
        'number = re.search(r"\\d+$", worker_input["workerid"])',
        'number = [worker_input["workerid"].lstrip("gw")]',
        workers.test_a_worker_may_have_any_name,
        raises=ValueError,
    ),
    fault(
        "a plugin with an option of ours gets a traceback",
        "simgpu._pytest.options:_add",
        "except argparse.ArgumentError:",
        "except ZeroDivisionError:",
        partial(foreign.test_another_plugin_with_an_option_of_ours_gets_one_line, name="--devices"),
        raises=argparse.ArgumentError,
    ),
    fault(
        "slots on one GPU count as distinct",
        "simgpu.pytest_plugin:_lend",
        "if wanted.distinct and not pool.distinct:",
        "if False:",
        pools.test_a_marker_gets_what_it_asks_for_or_skips,
    ),
    fault(
        "real GPUs are not waited for after an error",
        "simgpu._pytest.pools:CudaPool.lend",
        "    try:\n        yield devices\n    finally:\n",
        "    if True:\n        yield devices\n    if True:\n",
        pools.test_real_gpus_are_waited_for_after_an_error_too,
    ),
    fault(
        "a test that fails holds its scope",
        "simgpu._pytest.simulated_pool:SimulatedPool.lend",
        "        try:\n            yield devices\n        finally:\n",
        "        if True:\n            yield devices\n        if True:\n",
        pools.test_simulated_devices_end_after_an_error_too,
    ),
    fault(
        "one reason of skips is told",
        "simgpu._pytest.skips:count_lines",
        "for text in sorted(set(reasons)):",
        "for text in sorted(set(reasons))[:1]:",
        pools.test_skips_are_counted_by_their_reason,
    ),
    fault(
        "an error that has no text is told in place of the example's",
        "simgpu._testing.error_text:text_of",
        "except Exception:",
        "except ZeroDivisionError:",
        failing.test_a_failure_has_the_text_of_its_error,
        raises=RuntimeError,
    ),
    fault(
        "an error in a group has to have been raised",
        "simgpu._fuzz.failures:location",
        "if not frames:",
        "if False:",
        failing.test_a_failure_has_the_text_of_its_error,
        raises=IndexError,
    ),
    fault(
        "an assertion of unittest fails in Python's library",
        "simgpu._fuzz.failures:location",
        'startswith((_LIBRARY, "<"))',
        'startswith("<")',
        failing.test_an_assertion_of_unittest_fails_where_the_test_makes_it,
    ),
    fault(
        "a group that a test has raised has no code",
        "simgpu._fuzz.failures:inner_errors",
        "    yield error\n    if",
        '    if not hasattr(error, "exceptions"):\n        yield error\n    if',
        failing.test_a_failure_has_the_code_of_its_example,
    ),
    fault(
        "a class is written as an instance of it",
        "simgpu._fuzz.reproducers:Writer._instance",
        "dataclasses.is_dataclass(kind)",
        "dataclasses.is_dataclass(value)",
        partial(fuzz_report.test_what_has_no_source_is_said_to_have_none, value=fuzz_report.Local),
        raises=AttributeError,
    ),
    fault(
        "a complex number is written as Python prints it",
        "simgpu._fuzz.reproducers:Writer.write",
        "complex({self._row([value.real, value.imag])})",
        "{value!r}",
        fuzz_report.test_source_makes_the_number_again_to_the_bit,
        raises=NameError,
    ),
    fault(
        "a message that is no UTF-8 is lost with the report",
        "simgpu._fuzz.report:write",
        ', errors="backslashreplace"',
        "",
        fuzz_report.test_any_message_is_written,
        raises=UnicodeEncodeError,
    ),
    fault(
        "the place of an error is told from the folder that the test went to",
        "simgpu._fuzz.failures:location",
        "frame.filename, _START",
        "frame.filename",
        failing.test_a_failure_is_found_from_the_folder_of_the_campaign,
    ),
    fault(
        "a failure is replayed from the folder of the settings alone",
        "simgpu._testing.node_ids:node_id",
        'os.path.relpath(item.path, start).replace(os.sep, "/")',
        'item.nodeid.partition("::")[0]',
        failing.test_a_failure_is_found_from_the_folder_of_the_campaign,
    ),
    fault(
        "a session that a signal has ended is as good as any",
        "simgpu._fuzz.campaign:run_campaign",
        "if status not in (0, 1):",
        "if status > 5:",
        fuzzing.test_a_campaign_is_as_good_as_its_sessions,
    ),
    fault(
        "what nohup has ignored ends a campaign",
        "simgpu._fuzz.interrupts:one_interrupt",
        "hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN",
        "hangup is not None",
        partial(
            fuzzing.test_the_first_interrupt_counts_and_no_other,
            number=signal.SIGHUP,
            before=signal.SIG_IGN,
        ),
        raises=KeyboardInterrupt,
    ),
    fault(
        "Ctrl-C ends a replay before pytest has said where it was",
        "simgpu._fuzz.sessions:_status_of",
        "continue",
        "raise",
        fuzzing.test_ctrl_c_during_a_replay_is_for_pytest,
        raises=KeyboardInterrupt,
    ),
    fault(
        "a property that ends its process has not failed",
        "simgpu._fuzz.recorder:ExampleRecorder.counted",
        "except _FAILED as error:",
        "except (Exception, pytest.fail.Exception) as error:",
        failing.test_a_failure_has_the_text_of_its_error,
        raises=ValueError,
    ),
    fault(
        "a property that skips itself has failed",
        "simgpu._fuzz.recorder:ExampleRecorder.counted",
        "except (HypothesisException, *_SKIPPED):",
        "except (HypothesisException, pytest.skip.Exception):",
        failing.test_what_is_skipped_is_no_failure,
    ),
    fault(
        "a property that skips itself has failed as a whole",
        "simgpu._fuzz.recorder:ExampleRecorder.finish",
        " and not isinstance(error, _SKIPPED)",
        "",
        failing.test_what_is_skipped_is_no_failure,
    ),
    fault(
        "a property that is marked as failing takes the failures of all away",
        "simgpu._fuzz.recorder:ExampleRecorder.expected_to_fail",
        " if one.property == self._property]",
        "]",
        failing.test_what_is_marked_as_failing_is_no_failure,
    ),
    fault(
        "the batches of a property that is marked as failing have failed",
        "simgpu._fuzz.recorder:ExampleRecorder.expected_to_fail",
        "self.tally.failed -= self._failed",
        "pass",
        failing.test_what_is_marked_as_failing_is_no_failure,
    ),
    fault(
        "the longest example of the workers is kept",
        f"{TALLY}.add",
        "len(failure.example) < len(known.example)",
        "len(failure.example) > len(known.example)",
        tallies.test_the_shortest_example_of_all_workers_is_kept,
    ),
    fault(
        "the command of a failure forgets that schedules were drawn",
        "simgpu._fuzz.report:replay_command",
        'run.get("schedules")',
        "None",
        partial(
            fuzz_report.test_the_command_of_a_failure_draws_schedules_where_the_campaign_did,
            drawn=True,
            blob=None,
        ),
    ),
    fault(
        "only one worker's examples say in which order threads went on",
        f"{TALLY}.add",
        "self.switches += other.switches",
        "self.switches = other.switches",
        tallies.test_switches_of_all_workers_are_counted_and_told,
    ),
    fault(
        "a property is among the slowest several times",
        f"{TALLY}.add_slow",
        "if old.property != example.property]",
        "if old != example]",
        tallies.test_the_slowest_examples_are_of_ten_properties,
    ),
    fault(
        "batch 64 counts among the larger ones too",
        "simgpu._fuzz.heat_map:heat_map",
        "b > WIDEST",
        "b >= WIDEST",
        tallies.test_every_batch_has_one_cell_of_the_map,
    ),
    fault(
        "an interrupted campaign is a success",
        "simgpu._fuzz.campaign:run_campaign",
        "return 1 if tally.failures else status",
        "return status",
        tallies.test_a_campaign_ends_with_1_if_it_was_stopped_after_a_failure,
    ),
    fault(
        "the fewest devices of a fuzzing run are forgotten",
        "simgpu._testing.example_log:within_limits",
        "max(least, _ranges[of][0])",
        "least",
        drawn.test_a_fuzzing_run_may_narrow_the_device_counts,
    ),
    fault(
        "dimensions are counted from the front",
        "simgpu.strategies:dims",
        " | st.integers(-ndim, -1)",
        "",
        partial(drawn_afresh, check=drawn.test_dimensions_are_counted_from_both_ends, ndim=2),
    ),
    fault(
        "no batch has one row more than two chunks",
        "simgpu.strategies:_batch_sizes",
        "2 * n + 1, ",
        "",
        partial(
            drawn_afresh,
            check=drawn.test_the_edges_of_batches_are_those_of_the_chunk_rule,
            n=8,
            most=200,
        ),
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
