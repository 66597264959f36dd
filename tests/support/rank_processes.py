"""Worlds of ranks that are processes, forked from a server which has imported all they need.

A world costs some milliseconds in place of an interpreter per rank. What ranks run must be a
function of a module that imports no test tools, since every rank imports it.
"""

import functools
import multiprocessing
import pickle
import tempfile
import traceback
from datetime import timedelta

_PRELOADED = [
    "tests.support.rank_server",
    "simgpu._devices.block",
    "tests.support.rank_cases",
    "tests.support.rank_processes",
]


@functools.cache
def _context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def run(count, function, *arguments, backend="nccl", timeout=60.0, bound=False, debug="OFF"):
    """What `function(rank, *arguments)` returned on each rank, in order; raises what a rank raised.

    With `bound`, `init_process_group` is given its device. `debug` names a `dist.DebugLevel`.

    A rank that ended by itself has None in its place.
    """
    context = _context()
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(count):
            receiver, sender = context.Pipe(duplex=False)
            named = {"device_id": f"cuda:{rank}"} if bound else {}
            given = (backend, timeout, named, debug, folder, sender)
            process = context.Process(
                target=_rank, args=(function, rank, count, arguments, *given), daemon=True
            )
            process.start()
            sender.close()
            started.append((process, receiver))
        results = [_received(receiver) for _, receiver in started]
        for process, _ in started:
            process.join(30)
            process.close()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _received(receiver):
    try:
        return receiver.recv()
    except EOFError:
        return None


def _rank(function, rank, count, arguments, backend, timeout, named, debug, folder, sender):
    import torch
    from torch import distributed

    import simgpu

    torch.set_num_threads(1)
    distributed.set_debug_level(distributed.DebugLevel.__members__[debug])
    try:
        with simgpu.as_cuda(count, force=True):
            torch.cuda.set_device(rank)
            distributed.init_process_group(
                backend,
                rank=rank,
                world_size=count,
                store=distributed.FileStore(f"{folder}/store", count),
                timeout=timedelta(seconds=timeout),
                **{name: torch.device(value) for name, value in named.items()},
            )
            try:
                result = function(rank, *arguments)
            except Exception as error:
                result = error
                if hasattr(error, "add_note"):  # from Python 3.11 on
                    error.add_note(traceback.format_exc())
            distributed.destroy_process_group()
        pickle.dumps(result)
    except Exception as error:
        result = RuntimeError(f"{type(error).__name__}: {error}")
    sender.send(result)
