"""Faults planted in work that waits in queues, and in the waits of DataParallel."""

from functools import partial

from simgpu.errors import DeviceLostError
from tests.simulator.asynchronous import test_backward as backward
from tests.simulator.asynchronous import test_data_parallel as data_parallel
from tests.simulator.asynchronous import test_inference_mode as modes
from tests.simulator.asynchronous import test_interrupts as interrupts
from tests.simulator.asynchronous import test_laziest_order as laziest
from tests.simulator.asynchronous import test_marks as marks
from tests.simulator.asynchronous import test_memory_given_back as given_back
from tests.simulator.asynchronous import test_other_layouts as other_layouts
from tests.simulator.asynchronous import test_outputs as outputs
from tests.simulator.asynchronous import test_present_memory as present
from tests.simulator.asynchronous import test_programs as programs
from tests.simulator.asynchronous import test_rules as rules
from tests.simulator.asynchronous import test_untold_errors as untold
from tests.simulator.asynchronous import test_what_is_kept as kept
from tests.simulator.asynchronous import test_what_is_over as over
from tests.simulator.asynchronous import test_wrong_calls as wrong_calls
from tests.support.plant import fault
from tests.tools import test_streams_options as options

ASYNCHRONOUS = [
    fault(
        "a launch imports what its meta kernel asks for",
        "simgpu._simulation.asynchronous.block:begin",
        'importlib.import_module("torch._dynamo")',
        "pass",
        options.test_what_meta_kernels_import_is_there_before_a_launch,
    ),
    *(
        fault(
            name,
            "simgpu._simulation.asynchronous.block:end",
            old,
            new,
            rules.test_blocks_may_end_in_any_order,
        )
        for name, old, new in (
            (
                "a block that has ended stays in force",
                "was_in_force = _open[-1] is executor",
                "was_in_force = False",
            ),
            (
                "a block that ends before a later one leaves work",
                "executor.finish()",
                "_open[-1] is not executor or executor.finish()",
            ),
        )
    ),
    *(
        fault(name, where, old, new, present.test_what_is_done_to_it_waits)
        for name, where, old, new in (
            (
                "memory that has seen a collection of garbage is not known",
                "simgpu._runtime.tracked_objects:newest_first",
                "range(3)",
                "range(1)",
            ),
            (
                "memory that was frozen is not known",
                "simgpu._runtime.tracked_objects:newest_first",
                "gc.get_freeze_count()",
                "False",
            ),
            (
                "memory that died before counts as found",
                "simgpu._runtime.device:Device.live_count",
                "- self.freed_count",
                "- 2 * self.freed_count",
            ),
        )
    ),
    fault(
        "who knows all memory looks on",
        "simgpu._simulation.asynchronous.memory:Memory.own_all",
        "return",
        "pass",
        present.test_nobody_looks_on_when_all_is_known,
    ),
    fault(
        "who looks for memory and goes no further keeps all else alive",
        "simgpu._runtime.tracked_objects:_of_generation",
        "[*compress(objects, map(operator.is_, map(type, objects), repeat(kind)))]",
        "compress(objects, map(operator.is_, map(type, objects), repeat(kind)))",
        present.test_nothing_is_kept_alive_by_looking,
    ),
    *(
        fault(
            f"a script is told nothing of an error that nobody waited for, and ends {how}",
            "simgpu._cli.run_script:_tell_of_what_is_left",
            "executor.check_all()",
            "pass",
            partial(
                options.test_a_script_that_ends_well_is_told_of_errors_in_its_queues, status=status
            ),
            raises=raises,
        )
        for how, status, raises in (
            ("by itself", "none", None),
            ("with status 0", 0, SystemExit),
        )
    ),
    fault(
        "an error that surfaces at the end of a script comes with the frames of its queues",
        "simgpu._cli.run_script:_after_our_frames",
        " and not name.startswith(_QUEUES)",
        "",
        partial(options.test_a_script_that_ends_well_is_told_of_errors_in_its_queues, status=0),
    ),
    fault(
        "what a kernel refuses and its meta kernel does not is told when it runs",
        "simgpu._simulation.asynchronous.shapes:_plan",
        "if not taken:",
        "if False:",
        wrong_calls.test_dtypes_that_a_kernel_refuses_are_told_at_once,
        keepers=("simgpu._simulation.asynchronous.executor:_plans",),
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
        "replicas compute on the default streams",
        "dataparallel.parallel_apply:_Call.__init__",
        "self.stream = current_stream(device)",
        "self.stream = torch.get_device_module(device).default_stream(device)",
        data_parallel.test_replicas_compute_on_the_streams_of_their_caller,
    ),
    fault(
        "a stream does not wait for another",
        "simgpu._simulation.asynchronous.executor:Asynchronous.stream_waits",
        "self._queues.wait(key_of(stream), self._work_of(awaited))",
        "pass",
        data_parallel.test_chunks_of_the_host_arrive_in_the_laziest_order,
    ),
    fault(
        "queued work keeps the tensors of the program",
        "simgpu._simulation.asynchronous.held_work:Deferred.__init__",
        "self.kernel: Kernel = launch.kernel",
        "self.kernel: Kernel = launch.kernel; self._launch = (*self._launch, launch)",
        rules.test_memory_is_given_back_when_the_program_lets_go_of_it,
    ),
    fault(
        "copies from pageable memory read it when they run",
        "simgpu._simulation.asynchronous.copies:staged",
        "args[position] = source.clone()",
        "return None",
        rules.test_copies_between_host_and_device,
    ),
    fault(
        "copies to pageable memory do not block",
        "simgpu._simulation.asynchronous.copies:blocks",
        "return not (is_pinned(target) and target.is_contiguous())",
        "return False",
        rules.test_copies_between_host_and_device,
    ),
    fault(
        "results hold what the allocator gave",
        "simgpu._simulation.asynchronous.shapes:Layout.make",
        "self.filler, dtype",
        "0, dtype",
        rules.test_what_has_not_run_is_marked,
    ),
    fault(
        "an event that is asked again and again is never passed",
        "simgpu._simulation.asynchronous.executor:Asynchronous.is_done",
        "self._queues.step(work)",
        "raise TimeoutError",
        rules.test_events_are_passed_when_what_they_mark_has_run,
        raises=TimeoutError,
    ),
    fault(
        "errors of kernels are raised where they happen to run, and lose nothing",
        "simgpu._simulation.asynchronous.executor:Asynchronous.check_all",
        "raise error",
        "pass",
        untold.test_an_error_that_nobody_waits_for_is_told_at_the_end,
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
        "results that are no memory of devices are kept",
        "simgpu._simulation.asynchronous.memory:Memory.expect",
        "form, weakref.ref(view)",
        "form, lambda: view",
        kept.test_what_came_to_the_host_is_kept_by_the_program_alone,
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
        "number: Tensor = _clone(HOST_KEYS, tensor)",
        "number: Tensor = tensor",
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
        "queues have no end",
        "simgpu._simulation.asynchronous.queues:Queues.add",
        "elif len(queue) > LONGEST:",
        "elif False:",
        rules.test_a_queue_is_as_long_as_that_of_cuda,
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
        "what stands in front of a wait always runs first",
        "simgpu._simulation.asynchronous.queues:Queues.force",
        "if self._random is not None:",
        "if False:",
        laziest.test_a_stream_that_has_not_waited_comes_before_and_after_each_step,
    ),
    fault(
        "no drawn order lets work wait",
        "simgpu._simulation.asynchronous.queues:Queues.restart",
        "self._random.choice(_EAGERNESS)",
        "0.9",
        laziest.test_a_stream_that_has_not_waited_comes_before_and_after_each_step,
    ),
    fault(
        "streams in turns do not wait for each other",
        "simgpu._simulation.asynchronous.queues:Queues._force_drawn",
        " if queue[0].missing() is None",
        "",
        laziest.test_nothing_runs_before_what_it_needs,
    ),
    fault(
        "what other streams have to do first is forgotten",
        "simgpu._simulation.asynchronous.queues:Queues._needed",
        "todo += [need for need in each.needs if not need.done]",
        "each.needs = []",
        laziest.test_nothing_runs_before_what_it_needs,
    ),
    fault(
        "memory that was given back is overwritten late in all drawn orders",
        "simgpu._simulation.asynchronous.queues:Queues.restart",
        "self._random.random() < 0.5",
        "False",
        partial(
            programs.test_many_orders_show_what_is_missing,
            program=programs.PROGRAMS["freed_too_early"],
        ),
    ),
    fault(
        "waits of autograd's engine are left out of queues",
        "simgpu._runtime.engine_waits:_Log._tell",
        "event.wait(stream)",
        "pass",
        backward.test_gradients_are_right_whatever_streams_the_forward_used,
    ),
    fault(
        "memory of gradients is used again while another stream reads it",
        "simgpu._simulation.asynchronous.executor:Asynchronous.memory_used_on_stream",
        "self._memory.record(address, key_of(stream))",
        "pass",
        backward.test_gradients_are_right_whatever_streams_the_forward_used,
    ),
    fault(
        "memory that is given back is overwritten at once",
        "simgpu._simulation.asynchronous.memory:Memory.collect",
        "self._given_back.setdefault(block.key, []).append((weakref.ref(block), needs))",
        "self._queues.add(block.key, _Overwrite(block.storage), needs, early=True)",
        rules.test_memory_is_used_again_by_the_next_allocation_of_its_stream,
    ),
    fault(
        "an output that grows is read before what was queued has run",
        "simgpu._memory.host_aliases:SharedStorageAliases.__init__",
        "executors.finish()",
        "pass",
        partial(outputs.test_what_was_queued_is_there_before_it_is_read, name="cumsum"),
    ),
    fault(
        "queued kernels allocate nothing",
        "simgpu._simulation.asynchronous.executor:Asynchronous._queue",
        'if deferred.plan.allocates and launch.target.type != "cpu":',
        "if False:",
        rules.test_memory_is_used_again_by_the_next_allocation_of_its_stream,
    ),
    fault(
        "memory is used again before the streams that it was recorded on are done",
        "simgpu._simulation.asynchronous.memory:Memory.allocates",
        "if all(need.done for need in needs):",
        "if True:",
        rules.test_memory_is_used_again_by_the_next_allocation_of_its_stream,
    ),
    fault(
        "a nested block counts for the outer one",
        "simgpu._simulation.asynchronous.executor:Asynchronous.nested",
        "inner.deferred = inner.at_once = 0",
        "pass",
        rules.test_blocks_nest_with_counts_of_their_own,
    ),
    fault(
        "a nested block tells of the errors of the outer one",
        "simgpu._simulation.asynchronous.executor:Asynchronous.nested",
        "inner.reasons, inner._unseen = Counter(), []",
        "inner.reasons = Counter()",
        untold.test_an_error_is_told_by_the_block_in_which_its_devices_end,
    ),
    fault(
        "orders go on from one set of devices to the next",
        "simgpu._simulation.asynchronous.executor:Asynchronous.devices_created",
        "self._queues.restart(self.seed)",
        "pass",
        partial(
            programs.test_the_order_on_new_devices_is_that_of_the_first_ones,
            program=programs.PROGRAMS["prefetcher"],
        ),
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
        "a device that is lost at its end is lost for those that come next",
        "simgpu._simulation.asynchronous.executor:Asynchronous.devices_removed",
        "find_devices()",
        "pass",
        untold.test_the_next_devices_know_nothing_of_an_error_before,
    ),
    fault(
        "memory that was there before belongs to no stream of its device",
        "simgpu._simulation.asynchronous.memory:Memory.own_all",
        "(owner.index, 0)",
        "(owner.index, -1)",
        given_back.test_memory_is_overwritten_for_those_who_have_not_read_it,
    ),
    fault(
        "memory that was there before is the first device's",
        "simgpu._simulation.asynchronous.memory:Memory.own_all",
        "(owner.index, 0)",
        "(0, 0)",
        given_back.test_memory_is_overwritten_for_those_who_have_not_read_it,
    ),
    fault(
        "memory of a history that has ended is nobody's",
        "simgpu._runtime.device:Device.owns",
        "(isinstance(func, _ToldFree) and func.device is self)",
        "func is self._give_back",
        present.test_what_is_done_to_it_waits,
    ),
    fault(
        "a wait that is over keeps memory from being overwritten",
        "simgpu._simulation.asynchronous.queues:Queues._run_early",
        "self._pass_waits()",
        "pass",
        given_back.test_memory_is_overwritten_for_those_who_have_not_read_it,
    ),
    fault(
        "a wait for a wait that is over keeps memory from being overwritten",
        "simgpu._simulation.asynchronous.queues:Queues._pass_waits",
        "while passed:",
        "for _ in range(1):",
        given_back.test_memory_is_overwritten_for_those_who_have_not_read_it,
    ),
    fault(
        "the end of what is no kernel lets no memory be overwritten",
        "simgpu._simulation.asynchronous.queues:Queues._run",
        "if self._early and not work.early:",
        "if False:",
        given_back.test_memory_is_overwritten_for_those_who_have_not_read_it,
    ),
    fault(
        "of many readers of memory, those that have read it are kept in mind",
        "simgpu._simulation.asynchronous.memory:Memory.used",
        "if not user.done]",
        "if user.done]",
        given_back.test_memory_is_overwritten_for_those_who_have_not_read_it,
    ),
    fault(
        "memory that no allocation may get yet, none gets later",
        "simgpu._simulation.asynchronous.memory:Memory.allocates",
        "self._given_back[key] = kept",
        "pass",
        given_back.test_memory_is_overwritten_for_those_who_have_not_read_it,
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
        "an event that is recorded on a stream without work keeps its last mark",
        "simgpu._simulation.asynchronous.executor:Asynchronous.event_recorded",
        "event._simgpu_work = mark  #",
        "event._simgpu_work = mark or getattr(event, '_simgpu_work', None)  #",
        laziest.test_nothing_runs_but_what_is_waited_for,
    ),
    fault(
        "a result is held as it was made, in whatever mode it is used",
        "simgpu._simulation.asynchronous.memory:Memory.held",
        " and whole[1] is inference",
        "",
        modes.test_memory_is_changed_in_any_mode_as_at_once,
        raises=DeviceLostError,
    ),
    fault(
        "all results count as made outside of inference mode",
        "simgpu._simulation.asynchronous.memory:Memory.own",
        "form, _inference(), whole",
        "form, False, whole",
        modes.test_memory_is_changed_in_any_mode_as_at_once,
        raises=DeviceLostError,
    ),
    fault(
        "a view is held as it was first, in whatever mode it is used",
        "simgpu._simulation.asynchronous.memory:Memory.held",
        "place = address, form, inference",
        "place = address, form",
        modes.test_memory_is_changed_in_any_mode_as_at_once,
        raises=DeviceLostError,
    ),
    fault(
        "a kernel runs in the mode of whoever waits",
        "simgpu._simulation.asynchronous.launch_state:LaunchState.call",
        "before == self._settings",
        "before[:-1] == self._settings[:-1]",
        modes.test_memory_is_changed_in_any_mode_as_at_once,
        raises=DeviceLostError,
    ),
    fault(
        "a device that is lost keeps its queues",
        "simgpu._simulation.asynchronous.held_work:Deferred.in_state",
        "self._queues.drop(self._own[0])",
        "pass",
        over.test_a_lost_device_has_nothing_to_do,
    ),
    fault(
        "work that has run keeps what it needed",
        "simgpu._simulation.asynchronous.queues:Queues._taken",
        "work.needs = ()",
        "pass",
        over.test_an_event_keeps_nothing_of_what_came_before,
    ),
    fault(
        "a copy takes part on the device that it leaves only",
        "simgpu._simulation.asynchronous.held_work:ends_of",
        "(launch.source, launch.target)",
        "(launch.source,)",
        partial(
            rules.test_an_index_out_of_range_surfaces_where_the_host_waits,
            call=rules.OUTSIDE["index_select"],
            wait=rules.WAITS["copy from the host"],
        ),
    ),
]
