"""Calls that are described before it is known on which device they are made."""


def per_device(function):
    """Let `function(*arguments)` return what calls `function(device, *arguments)` for a device."""
    return lambda *arguments, **named: lambda device: function(device, *arguments, **named)
