"""torch.distributed on simulated devices: the kernels of the `c10d::` operators.

kernels             the 20 operators: begin here; `reducing`, `moving`, `sparse` have most of them
calls, agreement    what a rank asks of its group, and the error where ranks ask different things
rules               what NCCL refuses: dtypes, reductions, tensors
reductions          sums and their like over ranks, in the order of `simgpu.comm.reduction`
works               what a caller waits for; its output is poisoned until it has waited
factors             what the dispatcher loses of ReduceOp.PREMUL_SUM
low_precision       buckets of DistributedDataParallel's mixed precision
communicators       the state of one process group on this rank
backends            the backends of a process group, and what C++ drops of them
issue               calls on their way to the group, through `launch`
placement           on which device a call runs
lanes, gloo         ranks that are processes: calls in order, carried by ProcessGroupGloo
records             what a rank tells the others of a call before it begins
losses              which ranks have gone, where a connection has ended
shared_memory       where ranks of one machine write what the others read
nan_check           NaN in what a rank gives, where the environment says to look for it
inference           what torch.inference_mode has no part in
loopback            what a rank sends to itself
fake                the backend "fake", which has one rank
nccl                the class that goes by the name of ProcessGroupNCCL
hashes              the number of a tensor that PyTorch logs in its debug mode
hooks               what a communication hook answers
handles             a Work that the Reducer of DistributedDataParallel asks twice
splitting           parts of a group, which gloo makes
restarts            the store of ranks that torchrun starts again

PyTorch's C++ dispatches each collective as an operator by the device of its tensors, so everything
above stays PyTorch's own: DistributedDataParallel's Reducer, functional collectives, DTensor, FSDP.

May import: `_native`, `_runtime`, `errors`, `_counting`, `_naming`, `comm`, `torch`.
"""
