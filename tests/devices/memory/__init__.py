"""Storages, pinned memory, DLPack, overlapping arguments, statistics."""
