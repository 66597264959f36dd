"""The random numbers of CUDA: every operator that draws, parts of a draw, rare numbers."""
