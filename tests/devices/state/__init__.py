"""The current device, streams, threads, random numbers."""
