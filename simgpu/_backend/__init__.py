"""What PyTorch's C++ asks of a device type: its registration, device guard, generators.

`install` registers it all, once per process. `device_module` is `torch.simgpu`, and
`torch_patches` has every attribute of torch that is replaced for good.

May import: `_native`, `_runtime`, `errors`, `_naming`, `_random`, `torch`.
"""
