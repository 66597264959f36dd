"""Streams: blocks that make one current, and who waits for which."""
