"""Tensors on a device in queues, pipes, arguments and loaders, between real processes."""

import pytest

QUEUES = """
import os, sys

def child(given, inbox, outbox, pipe):
    if given is not None:
        given.add_(1)  # imports torch, by being received
    inbox.get().mul_(2)
    outbox.put("written")
    import torch
    y = torch.full((3,), 7.0, device="simgpu:0")
    pipe.send((y, y[1:]))
    pipe.recv()
    outbox.put(y.tolist())
    outbox.put((y.requires_grad_() * 2,))
    outbox.put("still there")
    inbox.get()

if __name__ == "__main__":
    import torch, simgpu
    import torch.multiprocessing as mp

    method, strategy = sys.argv[1:]
    mp.set_sharing_strategy(strategy)
    context = mp.get_context(method)
    os.environ["SIMGPU_DEVICE_COUNT"] = "2"
    with simgpu.devices(2):
        inbox, outbox = context.Queue(), context.Queue()
        ours, theirs = context.Pipe()
        given = None if method == "fork" else torch.ones(2, device="simgpu:0")
        process = context.Process(target=child, args=(given, inbox, outbox, theirs))
        process.start()
        x = torch.ones(4, device="simgpu:1")
        inbox.put(x)
        print(outbox.get(), x.tolist(), given is None or given.tolist())
        y, view = ours.recv()
        view.zero_()
        ours.send("zeroed")
        print(outbox.get(), y.device, torch.simgpu.memory_allocated(0))
        try:
            outbox.get()
        except RuntimeError as error:
            print("send tensor.detach()" in str(error))
        print(outbox.get())
        inbox.put(None)
        process.join()
        print(process.exitcode)
"""

HOGWILD = """
import os, sys, torch, simgpu
import torch.multiprocessing as mp

def train(rank, model, barrier):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        for turn in range(2):  # one after the other, so that the sum is exact
            if turn == rank:
                optimizer.zero_grad()
                model(torch.ones(1, 2, device=model.weight.device)).sum().backward()
                optimizer.step()
            barrier.wait()

if __name__ == "__main__":
    os.environ["SIMGPU_DEVICE_COUNT"] = "2"
    os.environ["SIMGPU_AS_CUDA"] = "1"
    with simgpu.as_cuda(2):
        model = torch.nn.Linear(2, 2, bias=False).cuda(1)
        torch.nn.init.zeros_(model.weight)
        model.share_memory()
        mp.spawn(train, (model, mp.get_context("spawn").Barrier(2)), nprocs=2)
        print(model.weight.tolist(), model.weight.device)
"""

LOADER = """
import os, sys, torch, simgpu
from torch.utils.data import DataLoader, Dataset, get_worker_info

NAME, METHOD = sys.argv[2], sys.argv[1]

class OnDevice(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        row = torch.full((2,), float(index), device=f"{NAME}:1")
        seeds = torch.initial_seed(), getattr(torch, NAME).initial_seed()
        worker = get_worker_info()
        host, drawn = torch.rand(2), torch.rand(2, device=row.device)
        return row, worker.id, worker.seed, *seeds, host, drawn.cpu()

class WithGraphs(OnDevice):
    def __getitem__(self, index):
        return torch.ones(1, device=f"{NAME}:1", requires_grad=True) * 2

def batches(dataset, size):
    return list(DataLoader(dataset, size, num_workers=2, multiprocessing_context=METHOD))

def drawn_as_seeded(loaded):
    parent = torch.Generator().manual_seed(7)
    base = torch.empty((), dtype=torch.int64).random_(generator=parent).item()
    # That is all that the parent's generators notice.
    yield torch.equal(torch.get_rng_state(), parent.get_state())
    for index in range(2):
        generator = getattr(torch, NAME).default_generators[index]
        yield (generator.initial_seed(), generator.get_offset()) == (7, 0)
    for number in range(2):  # of the workers: each draws as a program with this seed
        torch.manual_seed(base + number)
        for _, ids, *seeds, host, drawn in loaded[number::2]:
            yield ids.tolist() == [number] * 2
            yield all(seed.tolist() == [base + number] * 2 for seed in seeds)
            for one, other in zip(host, drawn):
                yield torch.equal(one, torch.rand(2))
                yield torch.equal(other, torch.rand(2, device=f"{NAME}:1").cpu())

if __name__ == "__main__":
    os.environ["SIMGPU_DEVICE_COUNT"] = "2"
    if NAME == "cuda":
        os.environ["SIMGPU_AS_CUDA"] = "1"
    with (simgpu.as_cuda if NAME == "cuda" else simgpu.devices)(2):
        try:
            batches(WithGraphs(), None)
        except RuntimeError as error:
            print("send tensor.detach()" in str(error))
        torch.manual_seed(7)
        loaded = batches(OnDevice(), 2)
        print([(row[:, 0].tolist(), str(row.device)) for row, *_ in loaded])
        print(all(drawn_as_seeded(loaded)))
"""

REFUSED = """
import torch, simgpu
import torch.multiprocessing as mp

def child(inbox, outbox):
    try:
        inbox.get()
    except RuntimeError as error:
        outbox.put(type(error).__name__ + ": " + str(error))

if __name__ == "__main__":
    with simgpu.devices(2):
        forked = mp.get_context("fork")
        before, outbox = forked.Queue(), forked.Queue()
        x = torch.ones(2, device="simgpu:1")
        late = forked.Process(target=child, args=(before, outbox))
        late.start()
        before.put(x)
        print(outbox.get()[:36])
        late.join()
        spawned = mp.get_context("spawn")
        inbox, outbox = spawned.Queue(), spawned.Queue()
        process = spawned.Process(target=child, args=(inbox, outbox))
        process.start()
        inbox.put(x)
        print(outbox.get()[:52])
        process.join()
"""


@pytest.mark.parametrize(
    ("method", "strategy"),
    [("spawn", "file_descriptor"), ("forkserver", "file_system"), ("fork", "file_system")],
)
def test_sent_tensor_shares_memory_between_processes(check, method, strategy):
    given = "True" if method == "fork" else "[2.0, 2.0]"
    assert check(QUEUES, method, strategy) == [
        f"written [2.0, 2.0, 2.0, 2.0] {given}",
        f"[7.0, 0.0, 0.0] simgpu:0 {0 if method == 'fork' else 512}",
        "True",
        "still there",
        "0",
    ]


def test_processes_train_one_model(check):
    """Hogwild: six steps by two processes, one after the other."""
    assert check(HOGWILD) == ["[[-3.0, -3.0], [-3.0, -3.0]] cuda:1"]


@pytest.mark.parametrize(("method", "name"), [("fork", "simgpu"), ("spawn", "cuda")])
def test_workers_of_a_loader_return_tensors_on_a_device(check, method, name):
    """And draw there, as on the CPU, by the seed that PyTorch gives each of them.

    A batch that cannot be sent ends the loop.
    """
    rows = [([0.0, 1.0], f"{name}:1"), ([2.0, 3.0], f"{name}:1"), ([4.0, 5.0], f"{name}:1")]
    assert check(LOADER, method, name) == ["True", str(rows), "True"]


def test_receivers_without_devices_and_forked_children_raise(check):
    assert check(REFUSED) == [
        "ForkedError: Cannot re-initialize si",
        "NoDevicesError: simgpu:1 was used, but there are no ",
    ]
