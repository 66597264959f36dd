"""Faults planted in what is known of a call that is queued: its results, refusals, and state."""

from functools import partial

from simgpu.errors import DeviceLostError
from tests.simulator.asynchronous import test_inference_mode as modes
from tests.simulator.asynchronous import test_interrupts as interrupts
from tests.simulator.asynchronous import test_marks as marks
from tests.simulator.asynchronous import test_other_layouts as other_layouts
from tests.simulator.asynchronous import test_rules as rules
from tests.simulator.asynchronous import test_what_is_kept as kept
from tests.simulator.asynchronous import test_wrong_calls as wrong_calls
from tests.support.plant import fault

QUEUED_CALLS = [
    fault(
        "what a kernel refuses and its meta kernel does not is told when it runs",
        "simgpu._simulation.asynchronous.shapes:_plan",
        "if not taken:",
        "if False:",
        wrong_calls.test_dtypes_that_a_kernel_refuses_are_told_at_once,
        keepers=("simgpu._simulation.asynchronous.executor:_plans",),
    ),
    *(
        fault(
            f"{what} is told when the device is waited for",
            "simgpu._runtime.operators:waits_for_values",
            line,
            "False",
            wrong_calls.test_the_host_waits_for_whether_a_matrix_was_singular,
            keepers=("simgpu._simulation.asynchronous.executor:_plans",),
        )
        for what, line in (
            ("a singular matrix", "_name(op) in _CHECKS"),
            ("what a call is to look for", 'bool(kwargs.get("check_errors"))'),
        )
    ),
    fault(
        "a kernel that takes no zeros is not queued",
        "simgpu._simulation.asynchronous.trials:is_taken",
        "continue",
        "return False",
        wrong_calls.test_a_kernel_that_takes_no_zeros_is_queued,
        keepers=("simgpu._simulation.asynchronous.executor:_plans",),
    ),
    fault(
        "results hold what the allocator gave",
        "simgpu._simulation.asynchronous.shapes:Layout.make",
        "self.filler, dtype",
        "0, dtype",
        rules.test_what_has_not_run_is_marked,
    ),
    fault(
        "kernels run with the settings of whoever waits",
        "simgpu._simulation.asynchronous.launch_state:LaunchState.call",
        "if before == self._settings:",
        "if True:",
        rules.test_a_kernel_runs_with_the_settings_of_its_launch,
    ),
    fault(
        "kernels run in the modes of their launch",
        "simgpu._simulation.asynchronous.launch_state:_state_of",
        " - _MODES",
        "",
        kept.test_what_is_launched_while_a_mode_begins_runs_without_it,
        raises=DeviceLostError,
    ),
    fault(
        "a call that cannot be foretold is remembered with what its meta kernel raised",
        "simgpu._simulation.asynchronous.shapes:Plans.of",
        "plan = Unplanned(*why.args)",
        "plan = why.with_traceback(None)",
        kept.test_what_no_meta_kernel_foretells_is_kept_by_nobody,
    ),
    fault(
        "numbers of the host are read when a kernel runs",
        "simgpu._simulation.asynchronous.held_work:Holder._hold_host",
        "return clone(HOST_KEYS, tensor)",
        "return tensor",
        rules.test_numbers_of_the_host_are_read_when_a_kernel_is_launched,
    ),
    fault(
        "1, 1.0 and True make one call",
        "simgpu._simulation.asynchronous.shapes:_signature",
        "found.append((type(value), value))",
        "found.append(value)",
        rules.test_plans_tell_calls_apart_that_compare_equal,
    ),
    fault(
        "batch norms that do not train are planned as if they did",
        "simgpu._simulation.asynchronous.shapes:_plan",
        "if kernel.name in _BATCH_NORMS and not args[5]:",
        "if False:",
        rules.test_batch_norm_returns_what_it_returns_at_once,
        raises=DeviceLostError,
        keepers=("simgpu._simulation.asynchronous.executor:_plans",),
    ),
    fault(
        "statistics of halves are planned as those of CUDA",
        "simgpu._simulation.asynchronous.shapes:_plan",
        "(name in _NORMS and args[0].dtype in _HALF)",
        "False",
        partial(
            rules.test_results_are_laid_out_as_at_once, call=rules.LAID_OUT["layer norm of halves"]
        ),
        keepers=("simgpu._simulation.asynchronous.executor:_plans",),
    ),
    fault(
        "results without elements are planned",
        "simgpu._simulation.asynchronous.shapes:_plan",
        "new and not is_idle",
        "False",
        partial(rules.test_results_are_laid_out_as_at_once, call=rules.LAID_OUT["norm of nothing"]),
        keepers=("simgpu._simulation.asynchronous.executor:_plans",),
    ),
    fault(
        "outputs without elements are planned",
        "simgpu._simulation.asynchronous.shapes:_plan",
        " or not all(map(_is_filled, outs))",
        "",
        partial(
            rules.test_results_are_laid_out_as_at_once, call=rules.LAID_OUT["output of nothing"]
        ),
        keepers=("simgpu._simulation.asynchronous.executor:_plans",),
    ),
    fault(
        "a kernel's state ends by a call of Python",
        "simgpu._simulation.asynchronous.launch_state:LaunchState.call",
        """        with _Guard(self._included, self._excluded):
            function()
        return""",
        """        guard = _Guard(self._included, self._excluded)
        guard.__enter__()
        function()
        guard.__exit__(None, None, None)
        return""",
        interrupts.test_an_interrupt_leaves_no_state_of_a_kernel_behind,
    ),
    fault(
        "arguments that overlap are refused when the kernel runs",
        "simgpu._simulation.asynchronous.held_work:Holder._check_overlap",
        "if any(self.blocks.count(block) > 1 for block in written):",
        "if False:",
        wrong_calls.test_arguments_that_overlap_are_refused_at_once,
        raises=DeviceLostError,
    ),
    fault(
        "real tensors are never negated lazily",
        "simgpu._simulation.asynchronous.forms:form_of",
        "if dtype.is_complex or tensor.is_neg():",
        "if dtype.is_complex:",
        rules.test_lazy_signs_are_there_when_a_kernel_runs,
    ),
    fault(
        "results whose columns come first hold what the allocator gave",
        "simgpu._simulation.asynchronous.shapes:Layout.make",
        ".fill_(self.filler)",
        "",
        marks.test_each_dtype_has_a_mark,
    ),
    *(
        fault(
            f"{what} tensors are queued like all others",
            "simgpu._simulation.asynchronous.shapes:_signature",
            line,
            "False",
            partial(other_layouts.test_other_layouts_are_computed_from_what_was_queued, kind=kind),
            raises=RuntimeError,
            keepers=("simgpu._simulation.asynchronous.executor:_plans",),
        )
        for what, line, kind in (
            ("sparse", "value.layout is not torch.strided", "sparse_coo"),
            ("nested", "value.is_nested", "nested"),
        )
    ),
    fault(
        "complex results are marked as integers are",
        "simgpu._simulation.asynchronous.shapes:_layout",
        "elif not (dtype.is_floating_point or dtype.is_complex):",
        "elif not dtype.is_floating_point:",
        marks.test_each_dtype_has_a_mark,
        keepers=("simgpu._simulation.asynchronous.executor:_plans",),
    ),
    fault(
        "a kernel runs in the mode of whoever waits",
        "simgpu._simulation.asynchronous.launch_state:LaunchState.call",
        "before == self._settings",
        "before[:-1] == self._settings[:-1]",
        modes.test_memory_is_changed_in_any_mode_as_at_once,
        raises=DeviceLostError,
    ),
]
