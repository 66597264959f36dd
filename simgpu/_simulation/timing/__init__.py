"""`simgpu.clock`: how long a program would take on real GPUs, as an estimate.

Kernels and copies are computed as ever; only time is another one. Every launch takes what its
FLOPs and bytes need on the GPU of the model that is asked for, copies take links of a topology, and
streams, events and the host wait for each other in simulated seconds.

block               the public context manager, and what it yields
durations           how long a kernel takes: PyTorch's count of its FLOPs, its bytes, peak rates
topology, presets   links between devices and the host, what way a copy takes, and named machines
amounts             what seconds and bytes per second may be
hosts               the time of the host: each thread, and the threads of a backward pass
timelines           what ran on which stream from when to when, and on which link
collectives         rings and trees: how long a collective takes, and when it may begin
replays             when the nodes of a graph may begin that is replayed
machine             all of this together, asked at each launch (an instrument) and for the time
critical_path       the chain of work that decides when the end comes
summary             the table that is printed

Nothing here looks at the wall clock: equal programs take equal times, to the bit.

May import: `_simulation/failures`, `_distributed`, `_runtime`, `_models`, `errors`, `_counting`,
`_naming`, `torch`.
"""
