"""CUDA's random numbers: the same seed gives the numbers that a GPU gives.

philox          the function from counters to random words
ahead           words computed ahead, for many small draws
stream          the state of a generator: seed and offset
geometry        how many threads a kernel has, which depends on the model of the GPU
layout          in which order elements are filled: that of memory
fill            a draw, put together of these
arithmetic, floats, integers, bernoulli     words as numbers of a distribution
dropout, multinomial, permutation           kernels that spread their elements otherwise
samplers, composed                          what runs for each operator

All of it works on CPU tensors and NumPy arrays, and knows no device. docs/fidelity.md says for each
operator how exact it is, and how that is known.

May import: `torch`, `numpy`.
"""
