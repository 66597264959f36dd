"""What each operator does on a simulated device, and which operator gets which kernel.

May import: `simgpu._memory` and below.
"""
