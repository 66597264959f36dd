"""Random operators with random, mostly wrong arguments: nothing may crash the interpreter.

    python -m tests.assurance.fuzz_operators --minutes 10
    python -m tests.assurance.fuzz_operators --seed 7 --round 12  # once more, with its calls

Each round takes one operator of PyTorch's database and calls it with its samples spoilt: devices
and dtypes mixed, shapes cut, views, empty tensors, None and numbers in place of tensors, outputs
that fit nothing, and numbers that name no place: far, negative or falling indices, labels, lengths,
offsets and strides. In half of the rounds the operators that PyTorch itself calls for the sample,
forwards and backwards, are called too, either with such numbers and right shapes or with right
numbers and wrong shapes: most backward operators are reached in no other way. Any Python exception
is fine.

Rounds run in child processes; one that dies is run again with everything on the CPU, since
PyTorch's own kernels crash on some arguments too: those are counted apart. The exit status is 1
where a call on simulated devices crashed, whatever the CPU does.

How arguments are spoilt is in `spoil.py`, and what is done with results in `use`.
"""

import argparse
import faulthandler
import math
import multiprocessing
import os
import random
import sys
import time
import traceback
import warnings
from functools import partial

from tests.assurance.fuzz_operators.spoil import misplace, outputs, reshape, spoil

ROUNDS = 150  # per child process
CALLS = 25  # per round
SILENCE = 60  # seconds without a new call after which a child counts as stuck
ROOM = 3 << 30  # bytes beside what a child has: arguments that ask for more get an exception


def variants(entry, pick):
    """The forms in which an operator can be called."""
    from tests.support.sweep.entries import in_place

    forms = [entry.op, entry.op, entry.op, in_place(entry), entry.method_variant]
    return pick.choice([form for form in forms if form is not None])


def use(result):
    """Do with a result what programs do with results."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        if tensor.numel() < 1_000:
            repr(tensor)
            tensor.clone()
            tensor.cpu()
    grown = [t for t in tensors if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    if grown:
        sum(t.abs().sum() for t in grown).backward()


def raw_calls(entry, samples):
    """The operators that PyTorch calls for the samples on the CPU, backwards too."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map_only

    found = {}

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if op not in found:
                found[op] = tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            return op(*args, **kwargs)

    for sample in samples:
        try:
            first = sample.input
            if isinstance(first, torch.Tensor) and first.is_floating_point():
                first = first.detach().requires_grad_()
            with Record():
                result = entry.op(first, *sample.args, **sample.kwargs)
                grown = [t for t in tree_leaves(result) if getattr(t, "requires_grad", False)]
                if grown:
                    sum(t.abs().sum() for t in grown).backward()
        except Exception:
            continue
    return [(op, *arguments) for op, arguments in found.items()]


def run_raw(entry, samples, seed, number, places, say):
    """CALLS calls of operators below the one of the round, with one kind of thing spoilt."""
    import torch
    from torch.utils._pytree import tree_map, tree_map_only

    known = raw_calls(entry, samples)
    for call in range(CALLS if known else 0):
        pick = random.Random(f"{seed} {number} raw {call}")
        op, args, kwargs = pick.choice(known)
        change = pick.choice([misplace, reshape])
        arguments = tree_map(partial(change, pick=pick), (args, kwargs))
        args, kwargs = tree_map_only(torch.Tensor, lambda x: x.to(places[0]), arguments)
        say(f"{number} raw {call} {entry.formatted_name} {op}", (args, kwargs))
        try:
            use(op(*args, **kwargs))
        except Exception as error:
            say(None, error)


def run_round(seed, number, places, say):
    """CALLS calls of one operator; `say` is told of each before it is made."""
    import itertools

    import torch
    from torch.utils._pytree import tree_map

    from tests.support.sweep import entries

    pick = random.Random(f"{seed} {number}")
    entry = pick.choice(list(entries.ENTRIES.values()))
    dtype = pick.choice(entries.dtypes_of(entry) or [torch.float64])
    try:
        stream = entry.sample_inputs_func(entry, "cpu", dtype, False)
        samples = list(itertools.islice(stream, 40))
    except Exception:
        return
    if pick.random() < 0.5:
        run_raw(entry, samples[:8], seed, number, places, say)
    result = None
    for call in range(CALLS if samples else 0):
        # Whatever came of the calls before: on the CPU without them it may be something else.
        pick = random.Random(f"{seed} {number} {call}")
        sample = pick.choice(samples)
        function = variants(entry, pick)
        leaves = [sample.input, list(sample.args), dict(sample.kwargs)]
        try:
            first, args, kwargs = tree_map(partial(spoil, pick=pick, places=places), leaves)
            if pick.random() < 0.3 and result is not None:
                kwargs["out"] = outputs(result, pick, places)
            say(f"{number} {call} {entry.formatted_name} {dtype} {function}", (first, args, kwargs))
            result = function(first, *args, **kwargs)
            use(result)
        except Exception as error:
            say(None, error)


def child(seed, rounds, host, say):
    """Run `rounds` of `seed`; `say` is called with each call before it is made."""
    import resource

    import torch

    import simgpu

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with simgpu.devices(2, memory="1GiB") as (first, second):
        with open("/proc/self/statm") as sizes:
            limit = int(sizes.read().split()[0]) * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        cpu = torch.device("cpu")
        places = [cpu] * 4 if host else [first, second, cpu, first]
        for number in rounds:
            run_round(seed, number, places, say)


def show(call, detail):
    print(call or "   ->", repr(detail)[:2000], flush=True)


def send(channel, call, _):
    if call:
        channel.send(call)


def serve(channel, seed, rounds, host):
    """In a process of its own, whose warnings go nowhere; where it ends, it prints why."""
    with os.fdopen(os.dup(2), "w") as errors, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        faulthandler.enable(errors)
        try:
            child(seed, rounds, host, partial(send, channel))
        except Exception:
            traceback.print_exc(file=errors)
            raise


def watch(seed, rounds, deadline, *, host=False):
    """Run rounds in a process; how it ended ("done", "stuck" or "crash"), and its last call."""
    context = multiprocessing.get_context("fork")  # this process has not imported torch
    calls, channel = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(channel, seed, rounds, host))
    process.start()
    channel.close()
    call, status = "", "done"
    try:
        while calls.poll(min(SILENCE, max(0.0, deadline - time.monotonic()))):
            call = calls.recv()
        status = "done" if time.monotonic() >= deadline else "stuck"
        process.kill()
        process.join()
    except EOFError:
        process.join()
        if process.exitcode > 0:
            raise RuntimeError("a child failed by itself") from None
        status = "crash" if process.exitcode else "done"
    return status, call


def run(minutes, seed):
    """Start children until the time is over; returns how many calls crashed on devices."""
    began = time.monotonic()
    deadline = began + 60 * minutes
    done, counts = 0, {"stuck": 0, "the CPU too": 0, "crash": 0}
    while time.monotonic() < deadline:
        first = 0
        while first < ROUNDS and time.monotonic() < deadline:
            status, call = watch(seed, range(first, ROUNDS), deadline)
            at = int(call.split()[0]) if call else first
            done += at - first + 1
            first = at + 1
            if status == "done":
                break
            if status == "crash":
                again, _ = watch(seed, range(at, at + 1), math.inf, host=True)
                status = "the CPU too" if again == "crash" else "crash"
            counts[status] += 1
            print(f"{status}: --seed {seed} --round {call}", flush=True)
        seed += 1
    print(f"{done} rounds of {CALLS} calls in {time.monotonic() - began:.0f} s: {counts}")
    return counts["crash"] + counts["the CPU too"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round", type=int, help="run this round of the seed here, and show it")
    parser.add_argument("--host", action="store_true", help="with everything on the CPU")
    options = parser.parse_args()
    if options.round is not None:
        faulthandler.enable()
        child(options.seed, [options.round], options.host, show)
    else:
        sys.exit(bool(run(options.minutes, options.seed)))


if __name__ == "__main__":
    main()
