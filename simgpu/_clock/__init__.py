"""`simgpu.clock`: how long a program would take on real GPUs, as an estimate.

Kernels and copies are computed as ever; only time is another one. Every launch takes what its
FLOPs and bytes need on the GPU of the model that is asked for, copies take links of a topology, and
streams, events and the host wait for each other in simulated seconds.

estimate        the public context manager; `Estimate` and its summary, with the critical path
machine         what each launch takes, on which stream, after what
durations       how long a kernel or a collective takes
topology        links between devices and the host; named machines
timelines       what ran when on which stream and link; the time of the host

May import: `_explore/faults`, `_core`, `_config`, `errors`, `_util`, `torch`.
"""
