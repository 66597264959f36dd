"""What a sweep over PyTorch's operator database needs.

entries     which operators, dtypes and samples
mirror      the same arguments on a device, views and shared memory included
compare     what it means that two answers agree
calls       one operator on the CPU and on a device
known       tests/known_differences.toml: the exceptions, each with its reason
"""
