"""What `dataparallel.comm` says of bad calls: the words of CUDA, which programs look for."""

import re

import pytest
import torch

from dataparallel import comm


def refusing_the_cpu(what, index):
    return f"Expected all {what} to be {{kind}} tensors, but .*tensor at index {index} has device"


# The call, of a tensor of four rows on the first device and of devices, and what it has to say.
BAD_CALLS = {
    "broadcast into the CPU": (
        lambda x, at: comm.broadcast(x, out=[x.cpu()]),
        refusing_the_cpu("output tensors", 0),
    ),
    "broadcast into the CPU as well": (
        lambda x, at: comm.broadcast(x.cpu(), out=[x.clone(), x.cpu()]),
        refusing_the_cpu("output tensors", 1),
    ),
    "broadcast into another shape": (
        lambda x, at: comm.broadcast(x, out=[x[:1].clone()]),
        "Expected all output tensors to have same shape as the source tensor",
    ),
    "scatter to no device": (
        lambda x, at: comm.scatter(x, ()),
        "Expected at least one device to scatter to",
    ),
    "scatter by too few sizes": (
        lambda x, at: comm.scatter(x, [at[0]] * 3, chunk_sizes=(2, 2)),
        r"Expected devices and chunk_sizes to be of same length, but got len\(devices\) = 3",
    ),
    "scatter by other sizes": (
        lambda x, at: comm.scatter(x, at, chunk_sizes=(2, 3)),
        "given chunk sizes don't sum up to the tensor's size",
    ),
    "scatter into nothing": (
        lambda x, at: comm.scatter(x, out=[]),
        "Expected at least one output tensor to scatter to",
    ),
    "scatter into the CPU": (
        lambda x, at: comm.scatter(x, out=[x.cpu()]),
        refusing_the_cpu("output tensors", 0),
    ),
    "scatter into another shape": (
        lambda x, at: comm.scatter(x, out=[x[None]]),
        r"Output tensor at index 0 has incorrect shape: \[1, 4, 2\]\. Expected same shape except "
        r"for scatter dim 0 as the source tensor: \[4, 2\]",
    ),
    "scatter into too little": (
        lambda x, at: comm.scatter(x, out=[x[:3].clone()]),
        "Total size for output tensors along scatter dim 0 does not match the source tensor size "
        r"at dim 0\. Expected 4, but got total size 3",
    ),
    "scatter into too little along the last": (
        lambda x, at: comm.scatter(x, dim=-1, out=[x[:, :1].clone()]),
        r"Total size for output tensors along scatter dim 1 does not match",
    ),
    "gather nothing": (
        lambda x, at: comm.gather(()),
        "Expected at least one tensor to gather from",
    ),
    "gather from the CPU": (
        lambda x, at: comm.gather((x, x.cpu())),
        refusing_the_cpu("input tensors", 1),
    ),
    "gather other dimensions": (
        lambda x, at: comm.gather((x, x[None])),
        "Expected all input tensors to have the same number of dimensions",
    ),
    "gather other sizes": (
        lambda x, at: comm.gather((x, x[:, 1:])),
        "Input tensor at index 1 has invalid shape",
    ),
    "gather to both": (
        lambda x, at: comm.gather((x,), destination="cpu", out=x.clone()),
        "'destination' must not be specified",
    ),
}


@pytest.mark.parametrize("name", sorted(BAD_CALLS))
@pytest.mark.devices(2)
def test_bad_calls_say_what_cuda_says(devices, name):
    call, words = BAD_CALLS[name]
    x = torch.ones(4, 2, device=devices[0])
    kind = re.escape(devices[0].type.upper())
    with pytest.raises(RuntimeError, match=words.format(kind=kind)):
        call(x, devices)


@pytest.mark.devices(2)
def test_broadcast_to_no_devices_is_empty(devices):
    assert comm.broadcast(torch.ones(2, device=devices[0]), ()) == ()
    assert comm.broadcast(torch.ones(2, device=devices[0]), out=()) == ()


def test_tensors_on_the_cpu_are_on_one_kind_of_device():
    x = torch.arange(4.0)
    assert comm.broadcast(x, out=[torch.empty(4)])[0].tolist() == x.tolist()
    halves = comm.scatter(x, out=[torch.empty(2), torch.empty(2)])
    assert comm.gather(halves).tolist() == x.tolist()
