"""`simgpu fuzz` and `simgpu replay`: look for examples that break a property, run one again.

A campaign (`campaign`) starts sessions of pytest (`sessions`) that load a plugin of ours
(`session_plugin`). The plugin counts and keeps what its process sees (`recorder`, `failures`), each
process writes its counts to a file (`tally`), and their sum is the report (`report`).

May import: `_counting`, `_testing`, `torch`, `hypothesis`, `jinja2`, `pytest`, `tqdm`.
"""
