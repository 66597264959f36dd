"""Kernels and copies that run when they are waited for: orders, memory, copies, errors."""
