"""A sample of the planted faults; `tests/assurance/faults` has all of them."""

import random

import pytest

from tests.assurance.faults.table import FAULTS
from tests.assurance.faults.trial import FILTERS, is_caught

SAMPLE = random.Random(1).sample(FAULTS, 20)


@FILTERS
@pytest.mark.parametrize("fault", SAMPLE, ids=lambda fault: fault.name)
def test_a_fault_of_the_sample_is_caught(request, fault):
    is_caught(request, fault)


def test_each_row_names_a_function_an_edit_and_a_test():
    """A row that a change of the packages or of the suite has left behind fails here."""
    wrong = []
    for fault in FAULTS:
        try:
            fault.arguments()
            fault.edit.trees()
        except LookupError as error:
            wrong.append(f"{fault.name}: {error}")
    assert wrong == []
