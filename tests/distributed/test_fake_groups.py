"""The backend "fake": on devices it does what PyTorch's own does with tensors of the CPU."""

from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.testing._internal.distributed.fake_pg import FakeStore

from simgpu._distributed import groups
from tests.support import collectives

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


def barrier(device, late):
    options = dist.BarrierOptions()
    options.device, options.asyncOp = device, late
    return dist.group.WORLD.barrier(options)


def made(name, parts, root, late, device):
    """Make a call, which is waited for by itself or by the program; returns its outputs."""
    if name == "barrier":
        work, outs = barrier(torch.device(device), late), []
    elif name == "recv":
        outs = [parts[0][0].to(device, copy=True)]
        work = (dist.irecv if late else dist.recv)(outs[0], root)
    else:
        work, outs = collectives.begin(
            name, parts, root, lambda x: x.to(device, copy=True), async_op=late
        )
    if late:
        work.wait()
    return outs


def compare(call, me, count, fails=False):
    """Make a call, which returns its outputs, on the CPU and on a device."""
    options = FakeProcessGroup.Options()
    options.error_on_collective = fails
    dist.init_process_group(
        "fake", store=FakeStore(), rank=me, world_size=count, pg_options=options
    )
    try:
        host, found = (outcome(call, device) for device in ("cpu", "cuda"))
        calls = groups.find(dist.group.WORLD)._last.values()
        waited_for = [call for call in calls if not call.done()]
    finally:
        dist.destroy_process_group()
    for call in waited_for:
        call.finish()  # or whoever waits for a device next would wait for ever
    assert not waited_for
    assert found == host


def outcome(call, device):
    try:
        return [out.tolist() for out in call(device)]
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("name", [*collectives.NAMES, "barrier", "recv"])
@given(
    count=st.integers(2, 4),
    data=st.data(),
    width=st.integers(1, 3),
    late=st.booleans(),
    fails=st.sampled_from([False, False, True]),
)
def test_fake_calls_are_equal_on_devices_and_cpu(cuda, name, count, data, width, late, fails):
    me = data.draw(st.integers(0, count - 1), label="rank")
    root = (me + 1) % count if name == "recv" else data.draw(st.integers(0, count - 1), "root")
    parts = collectives.brought(count, (width,), torch.float32, width)
    compare(lambda device: made(name, parts, root, late, device), me, count, fails)


@pytest.mark.parametrize("name", ["all_gather", "all_to_all", "all_to_all_single"])
@given(count=st.integers(2, 4), even=st.booleans(), seed=st.integers(0, 9), late=st.booleans())
@example(count=2, even=True, seed=0, late=False)
def test_fake_calls_of_uneven_lengths_are_equal_on_devices_and_cpu(
    cuda, name, count, even, seed, late
):
    """Also splits as large as without; and no rows are no rows for others."""
    parts = collectives.uneven(count, torch.float32, seed)
    if even:
        parts = collectives.brought(count, (2,), torch.float32, seed)

    def call(device):
        place, splits = partial(torch.Tensor.to, device=device, copy=True), "single" in name
        work, outs = collectives.begin(name, parts, 0, place, splits=splits, async_op=late)
        if late:
            work.wait()
        return outs

    compare(call, 0, count)
