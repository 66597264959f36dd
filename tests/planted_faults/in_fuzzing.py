"""Faults planted in fuzzing and in the public strategies: campaigns, failures, reports."""

import signal
from functools import partial

from tests.support.plant import fault
from tests.tools import test_failures as failing
from tests.tools import test_fuzz as fuzzing
from tests.tools import test_fuzz_report as fuzz_report
from tests.tools import test_strategies as drawn
from tests.tools import test_tallies as tallies

TALLY = "simgpu._fuzz.tally:Tally"


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


FUZZING = [
    fault(
        "an interrupt of the garbage collector is lost",
        "simgpu._fuzz.recorder:ExampleRecorder.interrupt",
        "self._interrupted = True",
        "pass",
        failing.test_an_interrupt_that_goes_no_further_ends_the_next_example,
    ),
    fault(
        "an interrupt while counts are written loses them",
        "simgpu._fuzz.recorder:ExampleRecorder.finish",
        "except KeyboardInterrupt:",
        "except ZeroDivisionError:",
        failing.test_an_interrupt_while_counts_are_written_loses_none,
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
        failing.test_an_assertion_fails_where_the_test_makes_it,
    ),
    fault(
        "an assertion fails in code that has no file",
        "simgpu._fuzz.failures:location",
        'startswith((_LIBRARY, "<"))',
        "startswith(_LIBRARY)",
        failing.test_an_assertion_fails_where_the_test_makes_it,
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
        "a property that is marked as failing has failed",
        "simgpu._fuzz.session_plugin:pytest_runtest_makereport",
        'hasattr(report, "wasxfail")',
        "False",
        failing.test_what_is_marked_as_failing_is_no_failure,
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
]
