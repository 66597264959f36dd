"""Every operator that PyTorch has samples for, on a simulated device and on the CPU."""
