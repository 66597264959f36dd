"""`simgpu fuzz` and `replay`: the campaign, its side within pytest, tallies, report, reproducers.

May import: `simgpu._testing`.
"""
