"""torch.distributed on simulated devices: collectives, data parallelism, mistakes of ranks."""
