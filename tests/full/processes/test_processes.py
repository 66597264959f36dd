"""Processes with simulated devices: how they end, fork, spawn, and feed a DataLoader.

Nearly every test here starts interpreters, which must be silent and successful to the end.
"""

import contextlib
import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import simgpu
from simgpu._core import hooks, world
from simgpu._core.hooks import Instrument
from simgpu.errors import NoDevicesError
from tests.support.instruments import added

ENTER = "import torch, simgpu, threading, queue\nentered = simgpu.devices(4); entered.__enter__()\n"

ENDINGS = {
    "objects everywhere": """
import atexit, builtins
x = torch.randn(4, device="simgpu:1", requires_grad=True)
view = x[1:]
(x * 2).sum().backward(retain_graph=True)
graph = (x * 2).sum()
x.me = [x, graph]
builtins.kept = torch.ones(4, device="simgpu:1")
atexit.register(lambda: kept + 1)
model = torch.nn.Linear(4, 4).to("simgpu:2")
optimizer = torch.optim.Adam(model.parameters())
loss = model(torch.ones(2, 4, device="simgpu:2")).sum()
loss.backward()
optimizer.step()
storage = torch.UntypedStorage(9, device="simgpu:3")
storage.resize_(3)
grown = torch.ones(3, device="simgpu:0").resize_(99)
pinned = torch.ones(3).pin_memory()
generator = torch.Generator("simgpu:1")
trace = simgpu.trace()
trace.__enter__()
traced = torch.ones(4, device="simgpu:1")
""",
    "threads": """
jobs, done = queue.Queue(), queue.Queue()
def wait():
    while True:
        done.put(jobs.get() * 2)
threading.Thread(target=wait, daemon=True).start()
jobs.put(torch.ones(3, device="simgpu:2"))
done.get()

started = threading.Event()
def compute():
    x = torch.ones(8, device="simgpu:1", requires_grad=True)
    started.set()
    while True:
        (x * 1.0).sum().backward()
threading.Thread(target=compute, daemon=True).start()
started.wait()

x = torch.ones(8, device="simgpu:1")
not_over = threading.Thread(target=lambda: [x.mul_(2) for _ in range(1000)])
not_over.start()
""",
}


@pytest.mark.parametrize("left", sorted(ENDINGS))
def test_process_exits_silently_with_live_objects(check, left):
    assert check(f"{ENTER}{ENDINGS[left]}\nprint('over')") == ["over"]


def test_first_backward_pass_imports_in_no_other_thread(check):
    """It may be within `import torch`, for whose end an import in a thread would wait for ever."""
    script = """
import sys
class Finder:
    def find_spec(name, *rest):
        if threading.current_thread() is not threading.main_thread():
            print("a thread imports", name)
sys.meta_path.insert(0, Finder)
torch.ones(1, device="simgpu:1", requires_grad=True).sum().backward()
"""
    assert check(ENTER + script) == []


def test_tensors_without_devices_can_be_read_and_saved():
    with simgpu.devices(2):
        x = torch.arange(3.0, device="simgpu:1", requires_grad=True)
        y = x * 2
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert y.tolist() == [0.0, 2.0, 4.0]
    assert torch.load(file, map_location="cpu").tolist() == [0.0, 1.0, 2.0]
    for use in (lambda: y + 1, x.clone, lambda: torch.UntypedStorage(3, device="simgpu:0")):
        with pytest.raises(NoDevicesError, match=r"^simgpu:\d was "):
            use()
    file.seek(0)
    with pytest.raises(RuntimeError, match=r"torch\.simgpu\.is_available\(\) is False"):
        torch.load(file)


def test_load_without_devices_names_the_missing_ones(check, tmp_path):
    """In a process that imports only torch."""
    with simgpu.devices(3):
        torch.save({"x": torch.ones(2, device="simgpu:2")}, tmp_path / "saved.pt")
    script = f"""
import torch
path = {str(tmp_path / "saved.pt")!r}
for weights_only in (True, False):
    try:
        torch.load(path, weights_only=weights_only)
    except RuntimeError as error:
        print(str(error).partition(":")[0], str(error).partition(", ")[2].partition(":")[0])
    print(torch.load(path, map_location="cpu", weights_only=weights_only))
"""
    says = "a tensor was saved on simgpu but this process has no simulated devices"
    assert check(script) == [says, "{'x': tensor([1., 1.])}"] * 2


FORKED = """
import torch.multiprocessing as mp

x = torch.ones(2, device="simgpu:1", requires_grad=True)
y = torch.ones(2, device="simgpu:1")
loss = (x * 2).sum()
USES = [
    lambda: torch.ones(2, device="simgpu:1"),
    lambda: torch.ones(2).to("simgpu:0"),
    lambda: torch.UntypedStorage(3, device="simgpu:0"),
    lambda: y + 1,
    lambda: y.add_(1),
    lambda: y.cpu(),
    lambda: y.tolist(),
    lambda: y.untyped_storage().cpu(),
    lambda: loss.backward(),
    lambda: torch.simgpu.synchronize(),
    lambda: torch.simgpu.init(),
    lambda: torch.simgpu.set_device(1),
    lambda: y.normal_(),
    lambda: torch.simgpu.initial_seed(),
    lambda: torch.simgpu.get_rng_state(1),
    lambda: torch.simgpu.get_rng_state_all(),
    lambda: simgpu.devices(2).__enter__(),
]

def text_of(use):
    try:
        use()
    except RuntimeError as error:
        return str(error)

SEEDS = [
    lambda: torch.simgpu.manual_seed(3),
    lambda: torch.simgpu.manual_seed_all(3),
    lambda: torch.simgpu.seed(),
    lambda: torch.simgpu.seed_all(),
    lambda: torch.simgpu.set_rng_state(state, 1),
    lambda: torch.simgpu.set_rng_state_all([state, state]),
    lambda: torch.seed(),
    lambda: torch.manual_seed(3),
]

def places():
    return [generator.get_state().tolist() for generator in torch.simgpu.default_generators]

state = torch.simgpu.get_rng_state(0)
torch.rand(2, device="simgpu:1")
before = places()

def child(answers):
    answers.put({text_of(use) for use in USES})
    answers.put(([text_of(seed) for seed in SEEDS] == [None] * len(SEEDS), places() == before))
    torch.manual_seed(3)
    weight = torch.ones(2, requires_grad=True)
    (weight * torch.rand(2)).sum().backward()
    torch.manual_seed(3)
    answers.put(weight.grad.tolist() == torch.rand(2).tolist())
    answers.put((torch.simgpu._is_in_bad_fork(), torch.simgpu.device_count(), y.shape[0]))

context = mp.get_context("fork")
answers = context.SimpleQueue()
process = context.Process(target=child, args=(answers,))
process.start()
for _ in range(4):
    print(answers.get())
process.join()
print(process.exitcode, torch.simgpu._is_in_bad_fork(), (y + 1).tolist(), places() == before)
"""


def test_forked_child_uses_the_cpu_and_no_device(check):
    text = (
        "Cannot re-initialize simgpu in forked subprocess. To use simgpu with multiprocessing, "
        "you must use the 'spawn' start method"
    )
    assert check(ENTER + FORKED) == [
        str({text}),
        "(True, True)",
        "True",
        "(True, 4, 2)",
        "0 False [2.0, 2.0] True",
    ]


LOADED = """
import gc, torch, simgpu
from torch.utils.data import DataLoader

def use(index):
    try:
        return torch.ones(2, device="simgpu:1")
    except RuntimeError as error:
        return str(error)

def load(pin):
    rows = [torch.full((2,), float(index)) for index in range(8)]
    loader = DataLoader(rows, 4, num_workers=2, pin_memory=pin, multiprocessing_context="fork")
    batches = list(loader)
    print([batch.is_pinned() for batch in batches])
    there = [batch.to("simgpu:1", non_blocking=True) for batch in batches]
    print(torch.cat(there)[:, 0].tolist() == list(range(8)))
    gc.collect()  # or the next worker inherits this loader, and complains at its end
    return loader

with simgpu.devices(4):
    kept = torch.ones(2, device="simgpu:3")
    load(True)
    loader = load(False)
    print(list(DataLoader([0], num_workers=1, collate_fn=use)))
    gc.collect()
    # Not one that pins: PyTorch's thread for that may still want what a worker takes with it.
    unfinished = iter(loader)
    next(unfinished)
"""


def test_a_loader_has_forked_workers_on_the_cpu(check):
    *lines, refused = check(LOADED)
    assert lines == ["[True, True]", "True", "[False, False]", "True"]
    assert "Cannot re-initialize simgpu in forked subprocess" in refused


def test_the_end_waits_for_threads_that_compute(monkeypatch):
    """Until all of them have come to their next launch."""
    answers = [True, True, False]
    monkeypatch.setattr(hooks, "add", lambda instrument: None)
    monkeypatch.setattr(world, "_computes", lambda ident, frame: answers.pop(0))
    monkeypatch.setattr(world.sys, "_current_frames", lambda: {1: None, 2: None})
    with contextlib.suppress(IndexError):
        world._at_exit()
    assert answers == []


def test_a_thread_computes_while_it_is_in_an_operator(simulated):
    x = torch.ones(2, device=simulated[0])
    arrived, proceed = threading.Event(), threading.Event()
    others = set(sys._current_frames())  # that tests before have left where they stood

    def computing():
        frames = sys._current_frames().items()
        return [i for i, f in frames if i not in others and world._computes(i, f)]

    class Stopping(Instrument):
        def before_launch(self, launch):
            arrived.set()
            proceed.wait(60)

    with ThreadPoolExecutor(1) as pool, added(Stopping()):
        job = pool.submit(lambda: (x + 1, threading.get_ident())[1])
        assert arrived.wait(60)
        found = computing()
        proceed.set()
        assert found == [job.result(60)]
    assert computing() == []
