"""CUDA's random numbers: the same seed gives the numbers that a GPU gives.

philox          the function from counters to random words; arithmetic as a GPU does it
generator_state seed and offset of a generator
layout          how many threads a kernel has, and which element each fills
fill            a draw, put together of these
distributions   words as numbers of a distribution
samplers        what runs for each operator
attention_masks dropout within CUDA's fused kernels of attention

All of it works on CPU tensors and NumPy arrays, and knows no device. docs/fidelity.md says for each
operator how exact it is, and how that is known.

May import: `torch`, `numpy`.
"""
