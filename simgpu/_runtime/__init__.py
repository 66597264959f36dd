"""State of the simulated machine: devices, the current device, memory counts, streams, launches.

Also instruments (callbacks on all of these), the clock, generators, and what fork and exit do. No
operator is defined here, and no attribute of torch is replaced.

May import: `_models`, `errors`, `_counting`, `_naming`, `_random`, `torch`.
"""
