"""Operators, autocast, transforms, and which devices may mix."""
