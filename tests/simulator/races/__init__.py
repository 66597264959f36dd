"""Streams that use the same memory in no order: what is reported, and when."""
