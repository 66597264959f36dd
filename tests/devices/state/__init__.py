"""The current device, streams, threads, generators, random numbers."""
