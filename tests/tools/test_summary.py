"""The table of `simgpu run --summary`: each device's share of the batch."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
import simgpu
from simgpu._profiling.summary import watch


class Named(nn.Module):
    """Takes its batch by name, next to what is the same for all, and calls other modules."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.loss = nn.MSELoss()

    def forward(self, *, rows, scale):
        return self.loss(self.layer(rows["x"]) * scale, rows["y"])[None]


def summary(run):
    """The last column of the table, by device, as numbers."""
    table = io.StringIO()
    with watch(None, table):
        run()
    heading, *rows = table.getvalue().splitlines()
    assert heading.endswith("    work   batch")
    return [row.split()[-1] for row in rows]


def shares(sizes, count):
    sizes = [*sizes, *[0] * (count - len(sizes))]
    return [f"{size / sum(sizes):.1%}" for size in sizes]


@pytest.mark.parametrize("kind", [nn.DataParallel, dataparallel.DataParallel])
@given(
    rows=st.integers(1, 40),
    count=st.integers(1, 5),
    steps=st.integers(1, 3),
    at_home=st.booleans(),
    dim=st.integers(0, 1),
)
def test_share_of_the_batch_is_that_of_the_chunks(kind, rows, count, steps, at_home, dim):
    x = torch.ones((rows, 3) if dim == 0 else (3, rows, 3))
    loss = nn.CrossEntropyLoss()
    with simgpu.devices(count) as devices:
        net = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).to(devices[0])
        parallel = kind(net, device_ids=devices, dim=dim)

        def run():
            for _ in range(steps):
                out = parallel(x.to(devices[0]) if at_home else x)
                loss(out, torch.zeros_like(out)).backward()

        if count == 1 and not at_home and kind is nn.DataParallel:
            x = x.to(devices[0])  # theirs leaves the batch where it is for one device
        chunks = [chunk.shape[dim] for chunk in x.chunk(count, dim)]
        assert summary(run) == shares(chunks, count)


@given(rows=st.integers(2, 20), count=st.integers(2, 4))
def test_share_of_a_batch_that_is_passed_by_name(rows, count):
    x, y = torch.ones(rows, 3), torch.ones(rows, 2)
    with simgpu.devices(count) as devices:
        parallel = dataparallel.DataParallel(Named().to(devices[0]), device_ids=devices)
        chunks = [len(chunk) for chunk in x.chunk(count)]
        assert summary(lambda: parallel(rows={"x": x, "y": y}, scale=2)) == shares(chunks, count)


def test_share_of_models_without_data_parallel():
    with simgpu.devices(3) as devices:
        first, second = (nn.Linear(3, 3).to(device) for device in devices[1:])

        def two_models():
            second(first(torch.ones(3, 3, device=devices[1])).to(devices[2]))
            second(torch.ones(6, 3, device=devices[2]))

        assert summary(two_models) == ["0.0%", "25.0%", "75.0%"]
        assert summary(lambda: torch.ones(2, device=devices[0]) + 1) == ["-"] * 3


class Fails(nn.Linear):
    def forward(self, x):
        raise KeyError("in a model")


@given(rows=st.integers(1, 9), again=st.integers(1, 9), after=st.booleans())
def test_model_after_a_failed_one_is_counted(rows, again, after):
    with simgpu.devices(2) as devices:
        broken = Fails(3, 2).to(devices[0])
        model = nn.Sequential(broken) if after else broken
        other = nn.Linear(3, 2).to(devices[1])

        def run():
            with pytest.raises(KeyError):
                model(torch.ones(rows, 3, device=devices[0]))
            other(torch.ones(again, 3, device=devices[1]))

        assert summary(run) == shares([rows, again], 2)


# What a program does on its device, and how many kernels CUDA launches for it.
DONE = {
    "empty": (lambda x: torch.empty(3, device=x.device), 0),
    "empty_like": (torch.empty_like, 0),
    "new_empty": (lambda x: x.new_empty(2), 0),
    "empty_strided": (lambda x: torch.empty_strided((2,), (1,), device=x.device), 0),
    "resize_": (lambda x: x.clone().resize_(2), 1),
    "resize, a copy": (lambda x: torch.ops.aten.resize(x, [2]), 1),
    "set_": (lambda x: torch.empty_like(x).set_(x), 0),
    "set_ to a part": (lambda x: torch.empty_like(x).set_(x.untyped_storage(), 1, (2,), (1,)), 0),
    "set_ to nothing": (lambda x: torch.empty_like(x).set_(), 0),
    "zeros of autograd's": (lambda x: torch._efficientzerotensor(2, device=x.device), 1),
    "a view": (lambda x: x.view(3, 1)[1:], 0),
    "ones": (lambda x: torch.ones(3, device=x.device), 1),
    "add": (lambda x: x + 1, 1),
    "fill_": (lambda x: x.fill_(2), 1),
    "to the host": (lambda x: x.cpu(), 0),
}


@given(program=st.lists(st.sampled_from(sorted(DONE)), max_size=8))
def test_tools_count_the_kernels_that_cuda_launches(program):
    table = io.StringIO()
    with simgpu.devices(1) as devices:
        x = torch.ones(3, device=devices[0])
        with (
            simgpu.clock("A100") as estimate,
            simgpu.trace() as trace,
            simgpu.faults() as counted,
            watch(None, table),
        ):
            for name in program:
                DONE[name][0](x)
        [share] = estimate.summary().shares
    launched = sum(DONE[name][1] for name in program)
    row = table.getvalue().splitlines()[1].split()
    assert int(row[1]) == launched
    assert len(trace.kernels) == counted.kernels == share.kernels == launched
    assert len(trace.copies) == counted.copies == program.count("to the host")
