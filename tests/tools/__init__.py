"""simgpu's commands, pytest plugin, strategies and fuzzing."""
