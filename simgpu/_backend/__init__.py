"""What PyTorch's C++ asks of a device type: its registration, device guard, generators.

install         registers everything, once per process
guard           the current device and streams, for C++; pinned memory
generators      `torch.Generator` of a device
namespace       `torch.simgpu`, with the names of torch.cuda
torch_patches   attributes of torch that are replaced for good
dynamo          functions that torch.compile skips

May import: `_core`, `_native`, `errors`, `_random`, `_util`, `torch`.
"""
