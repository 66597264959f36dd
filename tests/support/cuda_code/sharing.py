"""Which results of torch.nn.parallel share memory with what they got, and with each other."""

import itertools

import torch
from torch.nn import parallel
from torch.nn.parallel import comm

SLOTS = ([0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 0], [0, 1, 0])


def _shared(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _pairs(tensors):
    return [_shared(a, b) for a, b in itertools.combinations(tensors, 2)]


def _with(tensors, tensor):
    return [_shared(one, tensor) for one in tensors]


def _six(devices):
    return torch.arange(6.0, device=devices[0])


def _broadcast(devices):
    tensor = _six(devices)
    copies = comm.broadcast(tensor, devices)
    return [[one.device.index for one in copies], _with(copies, tensor), _pairs(copies)]


def _coalesced(*lengths, size=2**20):
    def run(devices):
        tensors = [torch.arange(float(n), device=devices[0]) for n in lengths]
        copies = comm.broadcast_coalesced(tensors, devices, buffer_size=size)
        first = [one[0] for one in copies]
        within = [_pairs(one) for one in copies]
        return [_with(first, tensors[0]), within, _pairs(first)]

    return run


def _scatter(devices):
    tensor = _six(devices)
    parts = comm.scatter(tensor, devices)
    back = comm.scatter(tensor, devices[::-1])
    return [
        _with(parts, tensor),
        [list(one.shape) for one in parts],
        _with(back, tensor),
        _pairs(back),
    ]


def _gather(devices):
    parts = comm.scatter(_six(devices), devices)
    whole = comm.gather(parts, destination=devices[0])
    one = comm.gather(parts[:1], destination=parts[0].device)
    return [_with(parts, whole), whole.tolist(), _shared(parts[0], one), one.tolist()]


def _reduce_add(devices):
    parts = [torch.full((2,), float(i), device=device) for i, device in enumerate(devices)]
    total = comm.reduce_add(parts, destination=devices[0])
    return [total.tolist(), total.device.index, _with(parts, total)]


def _replicate(detach):
    def run(devices):
        module = torch.nn.Linear(2, 2).to(devices[0])
        module.register_buffer("count", torch.zeros((), dtype=torch.int64, device=devices[0]))
        module.register_buffer("mean", torch.zeros(2, device=devices[0]))
        replicas = parallel.replicate(module, devices, detach)
        seen = [
            _with([getattr(one, name) for one in replicas], getattr(module, name))
            for name in ("count", "mean", "weight")
        ]
        return [*seen, [one.weight.requires_grad for one in replicas]]

    return run


CALLS = {
    "broadcast": _broadcast,
    "broadcast_coalesced of one": _coalesced(6),
    "broadcast_coalesced of two": _coalesced(6, 3),
    "broadcast_coalesced of two, a buffer each": _coalesced(6, 3, size=1),
    "scatter": _scatter,
    "gather": _gather,
    "reduce_add": _reduce_add,
    "replicate": _replicate(False),
    "replicate detached": _replicate(True),
}


def cases(model):
    if model == "h100":
        for name in CALLS:
            for slots in SLOTS:
                yield {"call": name, "slots": slots}


def run(case, side):
    """Which tensors share memory, and the values."""
    devices = [side.device(slot) for slot in case["slots"]]
    with side.values():
        try:
            return CALLS[case["call"]](devices)
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"[:200]
