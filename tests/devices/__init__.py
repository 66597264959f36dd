"""True on every device, real or simulated."""
