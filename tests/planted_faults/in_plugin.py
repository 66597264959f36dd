"""Faults planted in the pytest plugin: options, markers, pools, and what it tells."""

import argparse
from functools import partial

import pytest

from tests.support.plant import fault
from tests.tools import test_foreign_suites as foreign
from tests.tools import test_markers as marked
from tests.tools import test_plugin as plugin
from tests.tools import test_plugin_models as named
from tests.tools import test_plugin_workers as workers
from tests.tools import test_pools as pools
from tests.tools import test_streams_options as streams
from tests.tools import test_tracebacks as tracebacks
from tests.tools import test_wrapping as wrapping

PLUGIN = [
    fault(
        "a program without races is told nothing of them",
        "simgpu._cli.run_script:told_of_races",
        'print(f"simgpu run --races: {told}", file=sys.stderr)',
        'print(f"simgpu run --races: {told}", file=sys.stderr) if found else None',
        streams.test_how_many_races_a_program_had_is_said,
    ),
    fault(
        "a program that ends by sys.exit(0) had no races",
        "simgpu._cli.run_script:told_of_races",
        "if ended.code or not found:",
        "if True:",
        streams.test_how_many_races_a_program_had_is_said,
    ),
    fault(
        "a test that fails is told of no races",
        "simgpu._pytest.races:_watched",
        'if own and hasattr(error, "add_note"):',
        "if False:",
        streams.test_a_test_that_fails_by_itself_is_told_of_its_races,
    ),
    fault(
        "what pytest reads for its report is told as a race",
        "simgpu._pytest.races:_is_of_pytest",
        "any(access",
        "False and any(access",
        streams.test_a_test_that_fails_by_itself_is_told_of_its_races,
    ),
    fault(
        "only errors of simgpu's own types are shown at the line of the test",
        "simgpu._pytest.tracebacks:_hides_simgpu",
        "isinstance(error.value, _REFUSALS)",
        'type(error.value).__module__ == "simgpu.errors"',
        tracebacks.test_what_is_refused_is_shown_at_a_line_of_the_test,
    ),
    fault(
        "a dimension that is not there is shown with frames of simgpu",
        "simgpu._pytest.tracebacks:_hides_simgpu",
        "isinstance(error.value, _REFUSALS)",
        "isinstance(error.value, (RuntimeError, ValueError))",
        tracebacks.test_what_is_refused_is_shown_at_a_line_of_the_test,
    ),
    fault(
        "whatever has a name that begins with simgpu is simgpu",
        "simgpu._pytest.tracebacks:pytest_runtest_makereport",
        'name.partition(".")[0] == _PACKAGE',
        "name.startswith(_PACKAGE)",
        tracebacks.test_libraries_of_a_similar_name_keep_their_frames,
    ),
    fault(
        "mistakes of simgpu are shown at the line of the test too",
        "simgpu._pytest.tracebacks:_hides_simgpu",
        "isinstance(error.value, _REFUSALS)",
        "True",
        tracebacks.test_mistakes_of_simgpu_keep_their_frames,
    ),
    fault(
        "what a function of the program raises is shown with simgpu's frames above it",
        "simgpu._pytest.tracebacks:_hides_simgpu",
        "_is_of_the_program(_frames(error))",
        "False",
        tracebacks.test_what_the_program_raises_where_simgpu_calls_it_is_shown_without_simgpu,
    ),
    fault(
        "mistakes of simgpu below a function of the program are taken for the program's",
        "simgpu._pytest.tracebacks:_is_of_the_program",
        'if _module_of(frame).partition(".")[0] == _PACKAGE:',
        "if False:",
        tracebacks.test_mistakes_of_simgpu_keep_their_frames,
    ),
    fault(
        "what a kernel calls is shown as the place of the error",
        "simgpu._pytest.tracebacks:_hides_operators",
        "callers == {_PACKAGE}",
        "False",
        tracebacks.test_nor_is_what_simgpu_calls_shown_below_the_line_of_the_test,
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
]
