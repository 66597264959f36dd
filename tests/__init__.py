"""The suite: one file per family of properties. `README.md` says where a test goes."""

import pytest

# Helpers that assert: a failure in them says what it compared, as one in a test does.
pytest.register_assert_rewrite("tests.support")
