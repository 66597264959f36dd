"""Describe a call now and choose its device later."""


def per_device(function):
    """Make `function(*arguments)` return a function of a device, which calls `function` on it."""
    return lambda *arguments, **named: lambda device: function(device, *arguments, **named)
