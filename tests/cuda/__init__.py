"""Code written for CUDA on simulated devices."""
