"""Commands, the pytest plugin, strategies, fuzzing."""
