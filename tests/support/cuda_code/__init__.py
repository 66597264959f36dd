"""What PyTorch's CUDA code does around its kernels, asked of CUDA and of simulated devices alike.

A subject is a module with `cases(model)`, the cases as plain data, and `run(case, side)`, which
does one on the devices of a `Side` and returns what was seen as plain data. On an emulated CUDA
(`tests/assurance/emulated_cuda`) or a GPU the cases are recorded; simulated devices replay the
recording.

| file | subject |
|---|---|
| `allocator.py` | figures and layout of the caching allocator at each step of random programs |
| `offsets.py` | how far each random operator moves the generator |
| `random_values.py` | the values that each random operator draws, bit for bit (on GPUs only) |
| `values.py` | results and gradients of the operator database (on GPUs only) |
| `operators.py` | calls of PyTorch's operator database: refusals, words, dtypes, shapes, strides |
| `two_devices.py` | operators with tensors of two devices: what is accepted, words, devices |
| `api.py` | the words of torch.cuda, and of errors that its functions raise |
| `sharing.py` | which results of torch.nn.parallel share memory |
| `distributed.py` | collectives of NCCL, and the Reducer of DistributedDataParallel |
| `sides.py`, `recordings.py` | what is common to them: sides, files, known differences |
"""

SUBJECTS = (
    *("allocator", "offsets", "random_values", "values", "operators"),
    *("two_devices", "api", "sharing", "distributed"),
)
