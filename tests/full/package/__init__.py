"""The sdist and the wheel: what is in them, and what a user of them has."""
