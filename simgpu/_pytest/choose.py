"""Which devices a session gets for its options, and the errors where it cannot have them."""

from __future__ import annotations

import pytest

from simgpu._counting import plural
from simgpu._pytest import pools
from simgpu._pytest.gpu_groups import DEFAULT_SIZE, Worker, group_of
from simgpu._pytest.options import DeviceOptions, read_options
from simgpu._pytest.pools import CudaPool, Pool
from simgpu._pytest.simulated_pool import SimulatedPool
from simgpu._pytest.threads import use_one_thread
from simgpu._startup import variables

_SESSION_POOL = pytest.StashKey[Pool]()


def session_pool(config: pytest.Config) -> Pool:
    """Return the pool of this session; the first call chooses it, which may import torch."""
    if _SESSION_POOL not in config.stash:
        options = read_options(config)
        if options.worker is not None:
            use_one_thread()
        config.stash[_SESSION_POOL] = choose_pool(options)
    return config.stash[_SESSION_POOL]


def is_chosen(config: pytest.Config) -> bool:
    return _SESSION_POOL in config.stash


def choose_pool(options: DeviceOptions) -> Pool:
    """Return the pool that the options ask for, in a worker of pytest-xdist its own.

    Raises ``pytest.UsageError`` where they cannot be met, saying what there is.
    """
    _check_combination(options)
    if options.oversubscribe:
        return _slots_on_one_gpu(options)
    if options.as_cuda or options.kind == "simgpu" or _only_simulated(options):
        return simulated_pool(options)
    gpus = pools.gpu_count()
    if options.kind == "auto" and options.per_worker is None and gpus < 2:
        return simulated_pool(options)
    return _real_gpus(options, gpus)


def simulated_pool(options: DeviceOptions) -> SimulatedPool:
    """Return the pool of a session on simulated devices."""
    memory, model, rng = options.memory_by_device, options.model_by_device, options.rng_or_default
    count, source = options.count_or_default, "as cuda" if options.as_cuda else None
    if options.process_count and not options.as_cuda:
        count, source = options.process_count, f"by {variables.COUNT}"
    order = None
    if options.asynchronous:
        seed = options.async_seed
        order = "in the laziest order" if seed is None else f"in an order of seed {seed}"
    return SimulatedPool(count, memory, model, source, rng, order)


def _only_simulated(options: DeviceOptions) -> bool:
    """Whether something that simulated devices alone have was asked for."""
    told = options.process_count or options.memory or options.model or options.rng
    told = told or options.asynchronous or variables.tell_of_devices()
    return options.kind == "auto" and bool(told)


def group_size(options: DeviceOptions, gpus: int) -> int:
    """Return how many of `gpus` real GPUs a worker of pytest-xdist has."""
    return min(options.per_worker or options.count or DEFAULT_SIZE, gpus)


def _check_combination(options: DeviceOptions) -> None:
    """Raise for options that contradict each other on every machine."""
    per_worker, count = options.per_worker, options.count
    if per_worker is not None and (options.kind == "simgpu" or options.oversubscribe):
        raise pytest.UsageError(
            "--gpus-per-worker divides real GPUs among workers: it cannot be combined with "
            f"{'--oversubscribe' if options.oversubscribe else '--devices simgpu'}"
        )
    if per_worker is not None and count is not None and count > per_worker:
        raise pytest.UsageError(
            f"--device-count {count} asks for more than --gpus-per-worker {per_worker} gives"
        )
    if options.oversubscribe and options.kind == "simgpu":
        raise pytest.UsageError(
            "--oversubscribe puts several slots on one real GPU: it cannot be combined with "
            "--devices simgpu, which has as many devices as --device-count asks for"
        )


def _slots_on_one_gpu(options: DeviceOptions) -> Pool:
    if pools.gpu_count() == 0:
        raise pytest.UsageError("--oversubscribe needs a real GPU, and torch finds none here")
    worker = options.worker or Worker(0, 1)
    return CudaPool([0] * options.count_or_default, worker.index, worker.count)


def _real_gpus(options: DeviceOptions, gpus: int) -> Pool:
    """Return all GPUs that are asked for; in a worker of pytest-xdist those of its group."""
    count, per_worker = options.count, options.per_worker
    if per_worker is not None and per_worker > gpus:
        raise pytest.UsageError(
            f"--gpus-per-worker {per_worker} asks for more than the {plural(gpus, 'GPU')} here"
        )
    if gpus == 0:
        raise pytest.UsageError(
            "--devices cuda needs a real GPU, and torch finds none here; "
            "--devices simgpu runs the same tests on simulated ones"
        )
    if options.kind == "cuda" and count is not None and count > gpus:
        raise pytest.UsageError(
            f"--device-count {count} asks for more than the {plural(gpus, 'GPU')} here; "
            "--oversubscribe puts any number of slots on cuda:0"
        )
    if options.worker is None:
        return CudaPool(range(min(options.count_or_default, gpus)))
    group = group_of(options.worker, gpus, group_size(options, gpus))
    return CudaPool(group.ordinals[:count], options.worker.index, group.sharers)
