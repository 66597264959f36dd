"""Tensors on a device that are sent to other processes: what is received, and what is refused.

Here both ends are in one process: PyTorch forgets what it sent, so that the receiver maps the
shared memory a second time, as another process does. test_sending_processes.py has real ones.
"""

import multiprocessing.queues
import queue
import re
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing import reductions

import simgpu
from simgpu.errors import InvalidDeviceError, NoDevicesError, UnsupportedError

VIEWS = {
    "whole": lambda x: x,
    "slice": lambda x: x[1:],
    "transposed": lambda x: x.t(),
    "steps": lambda x: x[::2, 1:],
    "expanded": lambda x: x[:1].expand(3, 4),
    "bits": lambda x: x.view(torch.int32),
    "number": lambda x: x[2, 1],
    "empty": lambda x: x[3:],
}
views = st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=4)


@pytest.fixture(params=sorted(mp.get_all_sharing_strategies()), autouse=True)
def _strategy(request):
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield
    mp.set_sharing_strategy(before)


def send(value):
    """`value` as a process receives it that has not seen its memory before."""
    message = ForkingPickler.dumps(value)
    reductions.shared_cache.clear()
    return ForkingPickler.loads(message)


def made(device):
    return torch.arange(12.0, device=device).reshape(3, 4)


def place(tensor):
    return (
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.device,
        tensor.untyped_storage().nbytes(),
    )


@given(names=views, index=st.integers(0, 3))
def test_receiver_gets_the_same_memory(simulated, names, index):
    x = made(simulated[index])
    sent = [VIEWS[name](x) for name in names]
    expected = [view.tolist() for view in sent]
    received = send(sent)
    assert [place(view) for view in received] == [place(view) for view in sent]
    assert [view.tolist() for view in received] == expected == [view.tolist() for view in sent]
    assert len({view.untyped_storage()._cdata for view in received}) == 1
    x.mul_(2)
    assert [view.tolist() for view in received] == [view.tolist() for view in sent]
    received[0].zero_()
    assert [view.tolist() for view in received] == [view.tolist() for view in sent]


@given(names=views)
def test_the_sender_counts_its_memory_and_the_receiver_nothing(simulated, names):
    x = made(simulated[1])
    sent = [VIEWS[name](x) for name in names]
    before = dict(torch.simgpu.memory_stats(1))
    received = send(sent)
    send(x)
    assert dict(torch.simgpu.memory_stats(1)) == before
    del x, sent
    assert torch.simgpu.memory_allocated(1) == 0
    assert received[0].device == simulated[1]
    new = received[0].new_ones(3)
    assert torch.simgpu.memory_allocated(1) == 512
    del new


def test_a_tensor_sent_back_is_the_memory_sent(simulated):
    x = made(simulated[2])
    first = ForkingPickler.loads(ForkingPickler.dumps(x))
    again = ForkingPickler.loads(ForkingPickler.dumps(first[1:]))
    assert {t.untyped_storage()._cdata for t in (first, again)} == {x.untyped_storage()._cdata}
    received = send(x)
    there_and_back = send(received)
    there_and_back.fill_(7)
    assert x.sum().item() == received.sum().item() == 84


def test_parameters_gradients_and_lazy_bits_are_kept(simulated):
    layer = torch.nn.Linear(2, 2).to(simulated[1])
    layer.tied = layer.weight
    received = send(layer)
    assert isinstance(received.weight, torch.nn.Parameter)
    assert received.tied.data_ptr() == received.weight.data_ptr()
    with torch.no_grad():
        received.weight.fill_(3)
    assert layer.weight.tolist() == [[3.0, 3.0]] * 2
    received(torch.ones(1, 2, device=simulated[1])).sum().backward()
    assert received.weight.grad is not None
    assert layer.weight.grad is None
    leaf = torch.ones(2, device=simulated[0], requires_grad=True)
    assert send(leaf).requires_grad
    frozen = torch.nn.Parameter(torch.ones(2, dtype=torch.int32), False).to(simulated[0])
    assert not send(frozen).requires_grad
    z = torch.tensor([1 + 2j], device=simulated[0])
    assert send(z.conj()).tolist() == [1 - 2j]
    assert send(z.conj().imag).tolist() == [-2.0]


def test_a_module_shares_its_memory_by_being_sent(simulated):
    """`share_memory` has nothing to do on a device, as on CUDA."""
    layer = torch.nn.Linear(2, 2).to(simulated[1])
    weight = layer.weight
    assert layer.share_memory() is layer
    assert layer.weight is weight
    assert weight.is_shared()
    assert weight.untyped_storage().share_memory_().device == simulated[1]


def test_a_resize_ends_the_sharing(simulated):
    x = made(simulated[1])
    received = send(x)
    x.resize_(5, 4).zero_()
    assert torch.simgpu.memory_allocated(1) == 512
    assert received.tolist() == made("cpu").tolist()
    received.resize_(4, 4)
    assert received[:3].tolist() == made("cpu").tolist()
    assert torch.simgpu.memory_allocated(1) == 1024
    again = send(x)
    again.add_(1)
    assert x.sum().item() == 20


def test_storages_and_files_are_sent_and_saved(simulated, tmp_path):
    x = made(simulated[1])
    storage = send(x.untyped_storage())
    storage.fill_(0)
    assert x.sum().item() == 0
    assert send(x.untyped_storage()[:0]).nbytes() == 0
    x.fill_(2)
    torch.save(send(x), tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt").sum().item() == 24


def test_by_the_name_of_cuda():
    with simgpu.as_cuda(2) as devices:
        x = made(devices[1])
        received = send({"x": x, "model": torch.nn.Linear(2, 2).cuda(1)})
        received["x"].zero_()
        assert (x.sum().item(), received["x"].device) == (0, torch.device("cuda:1"))
        assert received["model"].weight.device == torch.device("cuda:1")


def _exported(x):
    with torch.simgpu.device(x.device):
        x.kept = torch.from_dlpack(x)
    return x


def _shrunk(x):
    first = x[0, :1]
    x.untyped_storage().resize_(4)
    return first


REFUSED = {
    "non-leaf": (lambda x: x.requires_grad_() * 2, RuntimeError, r"send tensor\.detach\(\)"),
    "sparse": (lambda x: x.to_sparse(), UnsupportedError, r"send its parts"),
    "csr": (lambda x: x.to_sparse_csr(), UnsupportedError, r"send its parts"),
    "nested": (
        lambda x: torch.nested.nested_tensor([x, x[1:]], layout=torch.strided),
        UnsupportedError,
        "send its parts",
    ),
    "exported": (_exported, UnsupportedError, r"exported .*send tensor\.clone\(\)"),
    "shrunk": (_shrunk, UnsupportedError, r"shrank .*send tensor\.clone\(\)"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.filterwarnings("ignore:.*(prototype|beta) sta")
def test_unsendable_object_raises_in_the_sender(simulated, name):
    make, error, text = REFUSED[name]
    value = make(made(simulated[1]))
    for send_it in (mp.SimpleQueue().put, mp.Pipe()[0].send):
        with pytest.raises(error, match=text):
            send_it([value])


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.filterwarnings("ignore:.*(prototype|beta) sta")
def test_late_errors_of_a_queue_raise_in_the_receiver(simulated, name):
    """A multiprocessing.Queue pickles in a thread of its own, whose errors reach nobody."""
    make, error, text = REFUSED[name]
    sent = mp.Queue()
    sent.put([make(made(simulated[1]))])
    with pytest.raises(error, match=text + r".*which put it into a queue"):
        sent.get(timeout=60)
    sent.put("the queue goes on")
    assert sent.get(timeout=60) == "the queue goes on"


def test_a_queue_with_an_error_callback_gets_the_error(simulated):
    """As that of concurrent.futures, which ends the task with the error."""
    heard = queue.SimpleQueue()

    class Listening(multiprocessing.queues.Queue):
        @staticmethod
        def _on_queue_feeder_error(error, value):
            heard.put((error, value))

    value = made(simulated[1]).to_sparse()
    Listening(ctx=mp.get_context()).put(value)
    error, lost = heard.get(timeout=60)
    assert isinstance(error, UnsupportedError)
    assert lost is value


def test_a_receiver_without_the_device_raises():
    with simgpu.devices(4):
        messages = [ForkingPickler.dumps(made("simgpu:3")) for _ in range(2)]
        kept = made("simgpu:0")
        text = "simgpu:3 was asked for, but there are 2"
    with simgpu.devices(2), pytest.raises(InvalidDeviceError, match=re.escape(text)):
        ForkingPickler.loads(messages[0])
    with pytest.raises(NoDevicesError, match=r"simgpu\.devices\(n\)"):
        ForkingPickler.loads(messages[1])
    with pytest.raises(NoDevicesError, match=r"simgpu\.devices\(n\)"):
        ForkingPickler.dumps(kept)


def test_another_strategy_is_refused_once_memory_is_shared(simulated):
    x = made(simulated[1])
    ForkingPickler.dumps(x)
    [other] = mp.get_all_sharing_strategies() - {mp.get_sharing_strategy()}
    mp.set_sharing_strategy(other)
    with pytest.raises(UnsupportedError, match="set_sharing_strategy before any tensor is sent"):
        ForkingPickler.dumps(x)
    assert send(x.clone()).tolist() == x.tolist()
