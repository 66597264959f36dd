"""Hypothesis profiles and pytest settings of the whole suite.

The devices come from the plugin (`simgpu/pytest_plugin.py`); this file only says how many examples
a property gets. Choose a profile with `pytest --hypothesis-profile=dev` (or `fuzz`).
"""

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# `devices` is made once per test and shared by the test's examples, which each use it through a
# subset of their own and leave nothing behind: hypothesis cannot know that the sharing is intended.
SHARED_DEVICES = [HealthCheck.function_scoped_fixture]

# The same examples on every run, so that a red build is red for everyone.
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    print_blob=True,
    suppress_health_check=SHARED_DEVICES,
)
settings.register_profile(
    "dev", deadline=None, max_examples=100, suppress_health_check=SHARED_DEVICES
)
# Building a large example is not a fault of the test that asked for it.
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=5000,
    print_blob=True,
    suppress_health_check=[*SHARED_DEVICES, HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ci")
