"""The simulated machine: worlds, devices, memory ledgers, streams, launches, the clock, processes.

No operator, and no attribute of torch replaced. May import: `simgpu._naming`, `_patches`,
`_class_proxies`, `errors`.
"""
