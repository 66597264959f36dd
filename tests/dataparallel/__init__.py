"""Properties of the library `dataparallel`."""
