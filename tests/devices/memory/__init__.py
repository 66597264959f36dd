"""Storages, pinned memory, the ledger."""
