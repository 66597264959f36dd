"""Single operators and layers, forward-mode AD, which operators autocast casts."""
