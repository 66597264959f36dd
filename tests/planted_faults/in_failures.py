"""Faults planted in failures on purpose, and in what is done about them."""

from functools import partial

from simgpu.errors import DeviceLostError, OutOfMemoryError, UnrepeatableStepError
from tests.simulator.failures import test_charging as charging
from tests.simulator.failures import test_faults as faults
from tests.simulator.failures import test_sweep as sweep
from tests.simulator.launches import test_trace as trace
from tests.support.plant import fault
from tests.tools import test_every_oom as every_oom

PUT_BACK = sweep.test_all_that_a_step_changes_is_put_back
# What a sweep puts back: the line that does it, what is left of it, and a step that needs it.
PUT_BACK_BY = [
    ("NumPy's generator", "numpy.random.set_state(arrays)", "pass", "NumPy's generator"),
    ("gradients", "for name, grad in self._grads.items():", "for name, grad in ():", "gradients"),
    (
        "optimizers",
        "optimizer.load_state_dict(copy.deepcopy(settings))",
        "pass",
        "parameters, gradients and an optimizer",
    ),
    (
        "the device's generator",
        "device.generator.set_state(state)",
        "pass",
        "the device's generator",
    ),
    (
        "the host's generator",
        "torch.default_generator.set_state(host)",
        "pass",
        "the host's generator",
    ),
    ("Python's generator", "random.setstate(python)", "pass", "Python's generator"),
]
BYTES_KEPT = partial(sweep.test_what_a_step_does_wrong_is_seen, make=sweep.keeping)

FAILURES = [
    fault(
        "a failed backward pass leaves its work in the thread's queue",
        "simgpu._backend.torch_patches.autograd:_drop_unfinished_work",
        "if _per_thread.depth <= 1:",
        "if False:",
        sweep.test_no_failure_of_a_training_step_leaves_anything,
    ),
    fault(
        "kernels that draw run before their memory is charged",
        "simgpu._runtime.charging:charge",
        "return Charge(op, device, sizes) if sizes else None",
        "return None",
        charging.test_a_failed_launch_has_changed_nothing,
    ),
    fault(
        "memory is charged first only where instruments are asked",
        "simgpu._runtime.charging:charge",
        "if not hooks.before_allocate and _has_ample_room(device, args):",
        "if not hooks.before_allocate:",
        charging.test_a_failed_launch_has_changed_nothing,
    ),
    fault(
        "held memory is not given back",
        "simgpu._runtime.device:Device.release",
        "self.taken -= nbytes",
        "pass",
        charging.test_a_failed_launch_has_changed_nothing,
    ),
    fault(
        "what was charged unseen is taken for what comes later",
        "simgpu._runtime.device:Device._ask",
        "for before in hooks.before_allocate:",
        "for before in () if self.taken else hooks.before_allocate:",
        charging.test_what_was_charged_before_there_were_instruments_is_not_told_of_others,
    ),
    fault(
        "instruments are asked twice about results that were charged first",
        "simgpu._runtime.device:Device._ask",
        'if getattr(storage, "_simgpu_asked", None) is hooks.before_allocate:',
        "if False:",
        charging.test_instruments_are_asked_once_for_each_allocation,
    ),
    fault(
        "what a failed launch asked for is taken for what comes later",
        "simgpu._runtime.charging:Charge.release",
        "storage._simgpu_asked",
        "type(storage)._simgpu_asked",
        charging.test_what_a_failed_launch_asked_for_is_asked_for_again,
    ),
    fault(
        "who has devices is told to enter some",
        "simgpu._simulation.failures.faults:_index",
        "if world.device_count()\n",
        "if not world.device_count()\n",
        faults.test_who_has_no_devices_is_told_to_enter_some,
    ),
    fault(
        "failed allocations are counted from 1",
        "simgpu._simulation.failures.faults:Faults.before_allocate",
        "if number == self._oom_at:",
        "if number + 1 == self._oom_at:",
        faults.test_exactly_the_named_one_fails,
    ),
    fault(
        "copies are counted among the kernels",
        "simgpu._simulation.failures.faults:Faults.before_launch",
        "number = next(self._counts[launch.kind])",
        'number = next(self._counts["kernel"])',
        faults.test_exactly_the_named_one_fails,
    ),
    fault(
        "a lost device can be copied from",
        "simgpu._simulation.failures.lost_devices:_LostDevices.before_launch",
        "for device in (launch.source, launch.target):",
        "for device in (launch.target,):",
        faults.test_a_lost_device_is_of_no_use_until_the_devices_end,
    ),
    fault(
        "a device stays lost in the next set of devices",
        "simgpu._simulation.failures.lost_devices:_LostDevices.devices_removed",
        "find_devices()",
        "pass",
        faults.test_a_lost_device_is_of_no_use_until_the_devices_end,
        raises=DeviceLostError,
    ),
    fault(
        "bits are counted in the order of the memory",
        "simgpu._simulation.failures.bits:_flip",
        "zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True)",
        "zip(tensor.shape, tensor.stride(), strict=True)",
        faults.test_one_bit_of_one_launch_is_flipped,
    ),
    fault(
        "a slow device is slower by one time too many",
        "simgpu._simulation.failures.faults:Faults.after_launch",
        "(factor - 1)",
        "factor",
        partial(faults.test_a_slow_device_takes_its_factor_of_time, factors=(4.0,)),
    ),
    fault(
        "of two blocks that slow a device down one counts",
        "simgpu._simulation.failures.faults:slow_factor",
        "math.prod(each._slow.get(index, 1.0) for each in _injected)",
        "max(each._slow.get(index, 1.0) for each in _injected)",
        partial(faults.test_a_slow_device_takes_its_factor_of_time, factors=(2.0, 2.0)),
    ),
    fault(
        "a sweep does not look at the memory that is kept",
        "simgpu._simulation.failures.sweep:_Attempt.judged",
        "if nbytes",
        "if nbytes < 0",
        BYTES_KEPT,
    ),
    fault(
        "memory of no bytes is an allocation that may fail",
        "simgpu._simulation.failures.faults:Faults.before_allocate",
        "if not nbytes:",
        "if False:",
        faults.test_memory_of_no_bytes_finds_room,
        raises=OutOfMemoryError,
    ),
    fault(
        "launches of later devices count for the bit to flip",
        "simgpu._simulation.failures.faults:Faults.computed",
        "launch.device.index != self._flip[0]",
        "launch.device.index < self._flip[0]",
        faults.test_one_bit_of_one_launch_is_flipped,
    ),
    fault(
        "fresh memory that nobody fills counts for the bit to flip",
        "simgpu._simulation.failures.faults:Faults.computed",
        ' or launch.kind == "memory"',
        "",
        faults.test_one_bit_of_one_launch_is_flipped,
    ),
    fault(
        "a test that runs out of memory by itself lets the failure out",
        "simgpu._simulation.failures.causes:passed_on",
        "any(place in str(link) for place in places)",
        "places",
        partial(every_oom.test_what_a_test_raises_in_place_of_the_failure_is_told, name="own"),
    ),
    fault(
        "what was made to fail has its device by its own name",
        "simgpu._simulation.failures.faults:Faults._note",
        "visible_text(what)",
        "what",
        sweep.test_failures_of_devices_by_the_name_of_cuda_are_told_by_it,
    ),
    fault(
        "a trace counts no copies of devices by the name of CUDA",
        "simgpu._profiling.trace:_simulated",
        'if found.type == "cuda"',
        "if False",
        trace.test_copies_between_devices_by_the_name_of_cuda_are_counted,
    ),
    fault(
        "a trace has devices by the name of CUDA by their own",
        "simgpu._profiling.trace:_Recorder.after_launch",
        'if "cuda" in _naming.names:',
        "if False:",
        trace.test_records_have_devices_by_the_name_that_tensors_have,
    ),
    fault(
        "no copy begins at a device of any number",
        "simgpu._profiling.trace:_simulated",
        "if found.index is None:",
        "if False:",
        partial(
            trace.test_copies_of_a_device_that_may_be_any_are_not_counted, kind="cuda", name=str
        ),
    ),
    fault(
        "a copy that fails is told of as a launch",
        "simgpu._simulation.failures.faults:Faults.before_launch",
        "_WHY[launch.kind]",
        "_WHY[max(_WHY)]",
        faults.test_exactly_the_named_one_fails,
    ),
    fault(
        "a bit past the last one is flipped somewhere else",
        "simgpu._simulation.failures.bits:flip_bit",
        "if bit >= count:",
        "bit %= count\n            if False:",
        faults.test_a_bit_past_the_last_one_is_refused,
    ),
    fault(
        "a failure that is the cause of another error is not seen",
        "simgpu._simulation.failures.causes:passed_on",
        "link = link.__cause__",
        "break",
        every_oom.test_a_comparison_that_runs_out_of_memory_is_the_failure,
    ),
    fault(
        "an error in the handler of a failure counts as the failure",
        "simgpu._simulation.failures.causes:passed_on",
        "link = link.__cause__",
        "link = link.__cause__ or link.__context__",
        every_oom.test_a_failure_is_let_out_as_the_cause_of_another_error,
    ),
    fault(
        "a test that fails by pytest.fail does not say under which failure",
        "simgpu._pytest.every_oom:_run_with_failure",
        "except (Exception, pytest.fail.Exception) as error:",
        "except Exception as error:",
        partial(every_oom.test_what_a_test_raises_in_place_of_the_failure_is_told, name="fail"),
    ),
    fault(
        "what one failure has kept is told of all that follow",
        "simgpu._simulation.failures.sweep:sweep",
        "kept_at_rest = _bytes()\n",
        "pass\n",
        sweep.test_what_is_kept_after_one_failure_is_told_of_no_other,
    ),
    fault(
        "a sweep does not put parameters back",
        "simgpu._simulation.state:State.restore",
        "tensor.copy_(self._values[name])",
        "pass",
        sweep.test_an_optimizer_that_fails_midway_is_told_apart,
        raises=UnrepeatableStepError,
    ),
    fault(
        "an optimizer whose failure is the cause of another error is not seen",
        "simgpu._simulation.failures.sweep:_Attempt._look_at",
        " or _passed_an_optimizer(found)",
        "",
        sweep.test_an_optimizer_is_seen_where_its_failure_is_the_cause_of_another,
    ),
    fault(
        "a device whose work is queued is lost by the call",
        "simgpu._simulation.failures.faults:Faults._lose_if_due",
        "if hooks.executor is None or self._at_once:",
        "if True:",
        faults.test_with_streams_that_overlap_a_loss_surfaces_where_something_waits,
        raises=DeviceLostError,
    ),
    fault(
        "what is queued on a lost device runs",
        "simgpu._simulation.asynchronous.held_work:Deferred.in_state",
        "if not is_any_lost(self.ends):",
        "if True:",
        faults.test_with_streams_that_overlap_a_loss_surfaces_where_something_waits,
    ),
    fault(
        "who waits for a copy from a lost device finds nothing wrong",
        "simgpu._simulation.asynchronous.executor:Asynchronous._queue_between",
        "self._missing.extend(moved.ends)",
        "None",
        faults.test_with_streams_that_overlap_a_loss_surfaces_where_something_waits,
    ),
    fault(
        "a copy that never ran counts as one that has",
        "simgpu._simulation.asynchronous.executor:Asynchronous._queue_between",
        "if not moved.has_run:",
        "if False:",
        faults.test_with_streams_that_overlap_a_loss_surfaces_where_something_waits,
    ),
    fault(
        "only a device that is waited for tells its loss at the end",
        "simgpu._simulation.asynchronous.executor:Asynchronous.check_all",
        "raise error",
        "pass",
        faults.test_a_loss_that_nobody_waits_for_is_told_at_the_end,
    ),
    fault(
        "a NaN is the same result as any number",
        "simgpu._simulation.state:_same_array",
        "return one.tobytes() == other.tobytes()",
        "return bool(((one == other) | (one != one)).all())",
        sweep.test_results_are_compared_to_the_bit,
    ),
    fault(
        "an array that a step returned changes with the next step",
        "simgpu._simulation.state:host_copy",
        "return leaf.copy()",
        "return leaf",
        sweep.test_an_array_that_a_step_returns_is_that_of_its_end,
    ),
    *(
        fault(
            f"a sweep does not put {what} back",
            "simgpu._simulation.state:State.restore",
            line,
            without,
            partial(PUT_BACK, make=sweep.CHANGES[change]),
            raises=UnrepeatableStepError,
        )
        for what, line, without, change in PUT_BACK_BY
    ),
    fault(
        "an optimizer goes on counting in what a sweep puts back",
        "simgpu._simulation.state:State.restore",
        "copy.deepcopy(settings)",
        "settings",
        partial(PUT_BACK, make=sweep.CHANGES["parameters, gradients and an optimizer"]),
    ),
    fault(
        "a pool of threads that fills up is taken for threads left behind",
        "simgpu._simulation.failures.sweep:_Attempt.adds_threads_each_time",
        "return False",
        "return True",
        sweep.test_a_pool_of_threads_that_fills_up_leaves_none_behind,
    ),
]
