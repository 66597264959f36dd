"""torch.distributed on simulated devices: the kernels of the `c10d::` operators.

c10d_kernels        the operators, and what NCCL refuses of them: begin here
collectives         what a rank asks of its group; reductions
agreement           all ranks have to ask the same; the steps of DistributedDataParallel
works               what a caller waits for; its output is unwritten until then
groups              the state of one process group on this rank
process_transport, thread_transport, fake_transport
                    how ranks exchange data: processes over gloo, threads, or no exchange at all
nccl                `ProcessGroupNCCL`

Begin with `c10d_kernels._all_reduce` and `issue`, and follow the call to its transport.

May import: `_core`, `_native`, `errors`, `_util`, `comm`, `torch`.
"""
