"""The full tier: processes, compilers, whole databases, pages and programs."""
