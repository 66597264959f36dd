"""Faults planted in how memory is followed, kept and used again while work waits in queues."""

from functools import partial

from simgpu.errors import DeviceLostError
from tests.simulator.asynchronous import test_inference_mode as modes
from tests.simulator.asynchronous import test_memory_given_back as given_back
from tests.simulator.asynchronous import test_outputs as outputs
from tests.simulator.asynchronous import test_present_memory as present
from tests.simulator.asynchronous import test_programs as programs
from tests.simulator.asynchronous import test_rules as rules
from tests.simulator.asynchronous import test_what_is_kept as kept
from tests.support.plant import fault

QUEUED_MEMORY = [
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
    fault(
        "queued work keeps the tensors of the program",
        "simgpu._simulation.asynchronous.held_work:Deferred.__init__",
        "self.kernel: Kernel = launch.kernel",
        "self.kernel: Kernel = launch.kernel; self._launch = (*self._launch, launch)",
        rules.test_memory_is_given_back_when_the_program_lets_go_of_it,
    ),
    fault(
        "results that are no memory of devices are kept",
        "simgpu._simulation.asynchronous.memory:Memory.expect",
        "form, weakref.ref(view)",
        "form, lambda: view",
        kept.test_what_came_to_the_host_is_kept_by_the_program_alone,
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
]
