"""`simgpu fuzz` and `simgpu replay`: look for examples that break a property, run one again.

campaign        starts sessions of pytest until time is up
sessions        one session: its environment and its command
session_plugin  the plugin in a session: counts examples, keeps failures
failures        failing examples, and files that repeat them
tally           the counts of one process, in a file
report          the sum of all counts as HTML and JSON

May import: `_strategies`, `_config`, `_util`, `torch`, `hypothesis`, `jinja2`, `pytest`, `tqdm`.
"""
