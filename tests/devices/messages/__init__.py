"""The messages of errors, which are CUDA's."""
