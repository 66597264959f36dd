"""Faults planted in the replay of what GPUs printed, in the report, and in the words asked for."""

from functools import partial

from tests.hardware import test_published as replays
from tests.support import published
from tests.support.plant import fault

REPLAY, REPORT = "tests.support.published", "tests.support.comparison"
WORDS = "simgpu._runtime.out_of_memory"
CASES = {
    case["source"]: case
    for case in published.load(published.PUBLISHED / "out_of_memory.json")["cases"]
}


def full(source):
    return partial(replays.test_words_of_full_devices, case=CASES[source])


REPLAYS = [
    fault(
        "a program that cannot be replayed is run",
        f"{REPLAY}:outcome",
        'if "unreplayed" in case:',
        "if False:",
        replays.test_a_program_that_is_not_replayed_says_why,
    ),
    fault(
        "numbers are compared to one digit",
        f"{REPLAY}:same",
        "0.5001 * 10**-digits",
        "0.5001 * 10**-min(digits, 1)",
        replays.test_numbers_are_compared_to_the_digits_that_were_printed,
    ),
    fault(
        "a reason excuses what does not differ",
        f"{REPLAY}:outcome",
        "if agree == expected:",
        "if agree == expected or case.get('known'):",
        replays.test_a_difference_needs_a_reason_and_a_reason_a_difference,
    ),
    fault(
        "only torch's library is asked",
        f"{REPLAY}:outcome",
        "libraries = LIBRARIES if names_library else LIBRARIES[:1]",
        "libraries = LIBRARIES[:1]",
        replays.test_a_difference_needs_a_reason_and_a_reason_a_difference,
    ),
    fault(
        "a reason of ours excuses torch too",
        f"{REPLAY}:outcome",
        '"known" not in case, not',
        "not {'known', 'ours'} & set(case), not",
        replays.test_a_difference_needs_a_reason_and_a_reason_a_difference,
    ),
    fault(
        "true and false are counted as numbers",
        f"{REPLAY}:numbers",
        " and not isinstance(seen, bool)",
        "",
        replays.test_the_report_counts_what_became_of_the_cases,
    ),
    fault(
        "what is not compared has agreed",
        f"{REPORT}:row_of_published",
        'agreed=verdicts["agreed"]',
        'agreed=len(outcomes) - verdicts["differs"]',
        replays.test_the_report_counts_what_became_of_the_cases,
    ),
    fault(
        "a difference without a reason is forgotten",
        f"{REPORT}:row_of_published",
        "for o in outcomes if o.is_wrong]",
        "for o in outcomes if o.is_wrong and not o.why]",
        replays.test_the_report_counts_what_became_of_the_cases,
    ),
    fault(
        "the sum of a report is its last row",
        f"{REPORT}:table",
        "sum(int(row.cells[k]) for row in rows)",
        "int(rows[-1].cells[k])",
        replays.test_the_report_counts_what_became_of_the_cases,
    ),
    fault(
        "words that are not said are found",
        f"{REPLAY}:said",
        "return match and match[0]",
        "return words if match is None else match[0]",
        replays.test_words_are_those_that_a_call_says,
    ),
    fault(
        "private pools are not told",
        f"{WORDS}:text",
        "if figures.private:",
        "if False:",
        full("a notebook with torch.compile, 47.53 GiB GPU"),
    ),
    fault(
        "one other process is told",
        f"{WORDS}:text",
        "in figures.processes:",
        "in figures.processes[:1]:",
        full("a log of an inference engine, 79.33 GiB GPU"),
    ),
    fault(
        "what is reserved leaves out what is allocated",
        f"{WORDS}:_text_of_1",
        "_size(figures.allocated + figures.unallocated)",
        "_size(figures.unallocated)",
        full("pytorch/pytorch#59778, 2021-06"),
    ),
    fault(
        "numbers may be a whole digit away",
        f"{REPLAY}:same",
        "0.5001 * 10**-digits",
        "1.5 * 10**-digits",
        replays.test_numbers_are_compared_to_the_digits_that_were_printed,
    ),
    fault(
        "true is one",
        f"{REPLAY}:same",
        "type(got) is type(printed) and got == printed",
        "got == printed",
        replays.test_numbers_are_compared_to_the_digits_that_were_printed,
    ),
]
