"""The simulated machine: devices, the current device, memory counts, streams, launches, hooks.

world           the devices that exist; the current device; fork and exit
device          one device: bytes taken, and by what
streams         streams and events; `captures` for those that record a graph
order           vector clocks: which work comes before which
launch          the one way by which work reaches a device
hooks           callbacks on launches, memory and streams; executors
operators       what PyTorch says of an operator
kernel_names    errors of CPU kernels with the names of CUDA's
unwritten       the values of memory that no kernel has written yet
clock           simulated time; by_address: memory that is known by its address only
out_of_memory, lost_devices     errors of a device that is full, or lost
allocator_model PyTorch's caching allocator, for statistics and snapshots
device_generator    the generator of a device

No operator is defined here, and no attribute of torch is replaced.

May import: `_config`, `errors`, `_random`, `_util`, `torch`.
"""
