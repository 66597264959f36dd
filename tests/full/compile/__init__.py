"""Programs that `torch.compile` and TorchScript compile, trace or run."""
