"""What a simulated device refuses: the error says so, why, and what to do instead."""

import pytest
import torch
from torch import nn

QUANTIZE = {
    "per tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "per channel": lambda x: torch.quantize_per_channel(
        x, torch.ones(2, device=x.device), torch.zeros(2, device=x.device), 0, torch.quint8
    ),
    "dynamic": lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, False),
    "integers": lambda x: torch._make_per_tensor_quantized_tensor(x.to(torch.int8), 0.1, 0),
    "to": lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8).to(x.device),
    "to a dtype": lambda x: x.to(torch.qint8),
    "empty, with a scale": lambda x: torch._empty_affine_quantized(
        [2], scale=1.0, zero_point=0, dtype=torch.quint8, device=x.device
    ),
    "empty": lambda x: torch.empty(3, dtype=torch.qint8, device=x.device),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, ")
@pytest.mark.parametrize("name", sorted(QUANTIZE))
def test_quantized_tensors_are_refused(simulated, name):
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::\w+.*fake_quantize"):
        QUANTIZE[name](torch.ones(2, 3, device=simulated[1]))


def test_memory_of_a_device_is_not_for_mkldnn(simulated):
    x = torch.ones(2, device=simulated[1])
    with pytest.raises(NotImplementedError, match=r"'aten::to_mkldnn' with arguments .*simgpu"):
        x.to_mkldnn()
    with pytest.raises(NotImplementedError, match="device type for mkldnn layout: simgpu"):
        torch.ones(2).to_mkldnn().to(x.device)


@pytest.fixture
def two_processes():
    """This process as the first of two whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("simgpu:fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


def test_sync_batch_norm_wants_its_rows_on_a_device(simulated, two_processes):
    net = nn.SyncBatchNorm(3).to(simulated[1])
    with pytest.raises(ValueError, match="expected input tensor to be on GPU or XPU or simgpu"):
        net(torch.ones(2, 3, 4))
    rows = torch.randn(2, 3, 4)
    single = nn.BatchNorm1d(3)(rows)  # the other process has the same rows: so has their mean
    torch.testing.assert_close(net(rows.to(simulated[1])).cpu(), single)
