"""A test of a library is skipped where the library, or what it imports, does not import."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.assurance.clients.support import why_not


@settings(max_examples=6)  # each imports in a process of its own
@given(
    library=st.sampled_from(["torchvision", "transformers", "sentence_transformers"]),
    whole=st.booleans(),
)
def test_a_broken_torchvision_is_a_reason_for_all_that_import_it(library, whole):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / f"{library}.py").write_text("")
        text = "" if whole else "raise RuntimeError('no kernels')"
        (Path(folder) / "torchvision.py").write_text(text)
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", folder)
        why_not.cache_clear()
        try:
            reason = why_not(library)
        finally:
            why_not.cache_clear()
    assert reason == (None if whole else "torchvision does not import: RuntimeError: no kernels")
