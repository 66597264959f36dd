"""Every operator that PyTorch has samples for, on a simulated device and on the CPU.

entries             which operators, dtypes and samples
mirror              the same arguments on a device, views and shared memory included
compare             what it means that two answers agree
known               tests/known_differences.toml: the exceptions, each with its reason
test_operators      the sweep
spoil               arguments made wrong, for the next one
fuzz_operators      random combinations of all of it; nothing may crash the interpreter
"""
