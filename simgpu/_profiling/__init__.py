"""Instruments that watch launches: trace, timeline, totals per device; and the inputs of modules.

May import: `simgpu._runtime`, `_naming`, `_patches`.
"""
