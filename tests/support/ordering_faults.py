"""Programs of threads that are wrong in some orders only: what exploring schedules has to find."""

import contextlib
import queue
import threading

import torch

import dataparallel
import simgpu
from tests.support.plant import Edit, call_instead, constant, instead
from tests.support.threads import in_threads


def lost_update(devices):
    """Two threads read a sum, add to it, and write it back."""
    total = torch.zeros(1, device=devices[0])

    def add():
        total.copy_(total.clone() + 1)

    in_threads(add, add)
    return total.cpu()


def order_of_completion(devices):
    """Results are kept in the order in which they come."""
    results = []

    def compute(number):
        results.append((torch.full((1,), number, device=devices[number]) + 1).cpu())

    in_threads(*(lambda number=number: compute(number) for number in range(3)))
    return list(results)


def lock_cycle(devices):
    """Two locks, taken in different orders."""
    one, other = threading.Lock(), threading.Lock()

    def take(first, then):
        with first, then:
            torch.ones(1, device=devices[0])

    in_threads(lambda: take(one, other), lambda: take(other, one))


def missed_notice(devices):
    """A thread looks whether it has to wait before it takes the lock under which it waits."""
    condition, ready = threading.Condition(), []

    def wait():
        if not ready:
            with condition:
                condition.wait()

    def tell():
        with condition:
            ready.append(True)
            condition.notify_all()

    in_threads(wait, tell)


def made_twice(devices):
    """A cache that is filled by whoever finds it empty, without a lock."""
    cache = {}

    def get():
        if "weight" not in cache:
            made = torch.ones(1, device=devices[0])
            cache.setdefault("made", []).append(made)
            cache["weight"] = made
        return cache["weight"]

    in_threads(get, get)
    assert len(cache["made"]) == 1


def time_out_for_an_answer(devices):
    """None stands for "nothing came in time", and is taken for an answer."""
    answers = queue.Queue()

    def ask():
        answers.put((torch.ones(1, device=devices[0]) + 1).cpu())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        answer = answers.get(timeout=5)
    except queue.Empty:
        answer = torch.zeros(1)
    thread.join()
    return answer


def closed_too_early(devices):
    """A queue is given up for empty while its producer is still at work."""
    jobs, done, results = queue.Queue(), [], []

    def produce():
        for number in range(2):
            jobs.put(torch.full((1,), number, device=devices[1]).cpu())
        done.append(True)

    def consume():
        while not done or not jobs.empty():
            try:
                results.append(jobs.get(timeout=1))
            except queue.Empty:
                break

    in_threads(produce, consume)
    assert len(results) == 2


def _with_edits(step, *edits):
    with contextlib.ExitStack() as planted:
        for edit in edits:
            planted.enter_context(edit.planted())
        return step()


def thread_given_back_twice(devices):
    """A thread of the pool is idle twice, and gets two replicas that wait for each other."""

    class Meeting(torch.nn.Module):
        def forward(self, x, barrier):
            barrier.wait()
            return x + 1

    def call():
        barrier = threading.Barrier(2)
        inputs = [(torch.ones(1, device=device), barrier) for device in devices[:2]]
        dataparallel.parallel_apply([Meeting(), Meeting()], inputs)

    change = call_instead("append", lambda free, worker: free.extend([worker, worker]))
    twice = Edit("_Batch.one_done", change)
    _with_edits(lambda: [call() for _ in range(3)], twice)


def returned_too_early(devices):
    """A call does not wait for its last replica."""
    net = dataparallel.DataParallel(torch.nn.ReLU(), [0, 1, 2])
    early = Edit("_Batch.one_done", constant(0, 1))
    return _with_edits(lambda: net(torch.arange(3.0, device=devices[0])).cpu(), early)


def joined_as_they_end(devices):
    """Outputs of replicas are joined in the order in which these are done."""
    net = dataparallel.DataParallel(torch.nn.ReLU(), [0, 1, 2])
    ended = []

    def in_order_of_ending(outputs):
        return [each for each in ended if any(each is output for output in outputs)]

    return _with_edits(
        lambda: net(torch.arange(3.0, device=devices[0])).cpu(),
        Edit(
            "_Call.run",
            instead(lambda stock: lambda call: (stock(call), ended.append(call.output))),
        ),
        Edit(
            "parallel_apply",
            instead(lambda stock: lambda *args: in_order_of_ending(stock(*args))),
        ),
    )


def hook_of_the_caller(devices):
    """Hooks of all replicas are called in the caller's thread, and find its device."""
    net = dataparallel.DataParallel(torch.nn.ReLU(), [0, 1])

    def hook(module, args, output):
        assert torch.simgpu.current_device() == output.device.index

    def apply_then_call_hooks(stock):
        def apply(modules, *args):
            outputs = stock(modules, *args)
            for module, output in zip(modules, outputs, strict=True):
                for each in modules[0]._forward_hooks.values():
                    each(module, (), output)
            return outputs

        return apply

    net.module.register_forward_hook(hook)
    without_hooks = call_instead("module", lambda call, *args: call.module.forward(*args))
    return _with_edits(
        lambda: net(torch.arange(3.0, device=devices[0])).cpu(),
        Edit("_Call.run", without_hooks),
        Edit("parallel_apply", instead(apply_then_call_hooks)),
    )


PROGRAMS = (
    lost_update,
    order_of_completion,
    lock_cycle,
    missed_notice,
    made_twice,
    time_out_for_an_answer,
    closed_too_early,
    joined_as_they_end,
    returned_too_early,
)
# Wrong in the order by default too.
ALWAYS_WRONG = (thread_given_back_twice, hook_of_the_caller)


def outcome(step, **how):
    """What a step does in one schedule: its failure, or its result and all that happened."""
    try:
        with simgpu.schedule(**how) as schedule:
            result = step()
    except Exception as error:
        return type(error), len(schedule.trace)
    return str(result), schedule.digest()
