"""Memory that a device counts, the caching allocator, storages, pinned memory."""
