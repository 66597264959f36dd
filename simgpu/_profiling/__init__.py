"""Who watches launches: the trace, the timeline, totals per device, the inputs of modules.

May import: `simgpu._runtime`, `_naming`, `_patches`.
"""
