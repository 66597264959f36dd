"""Faults planted in which bytes an access touches, and which line of the program asked for it."""

from tests.simulator.launches import test_places as places
from tests.simulator.memory import test_by_address as by_address
from tests.simulator.races import test_accesses as accesses
from tests.simulator.races import test_parts as parts
from tests.support.plant import fault

DETECTOR = "simgpu._simulation.races.detector:Detector"

ACCESSES = [
    *(
        fault(
            what,
            f"simgpu._runtime.by_address:ByAddress.{name}",
            line,
            planted,
            by_address.test_memory_is_found_by_any_of_its_addresses,
            raises=KeyError if planted == "while False:" else None,
        )
        for what, name, line, planted in (
            (
                "what an interrupt has left hides the memory before it",
                "at",
                "del self._begins[place]",
                "return None",
            ),
            (
                "what an interrupt has left hides the memory that begins before a span",
                "overlapping",
                "while place and begins[place - 1] not in pieces:",
                "while False:",
            ),
            (
                "what an interrupt has left counts as memory",
                "overlapping",
                "if piece is not None:",
                "if True:",
            ),
            (
                "memory is put beside what an interrupt has left in its place",
                "put",
                "if place == len(begins) or begins[place] != begin:",
                "if True:",
            ),
            (
                "memory that begins before a span is not in it",
                "overlapping",
                "begin < pieces[begins[place - 1]].end",
                "False",
            ),
            (
                "memory goes on past its end",
                "at",
                "piece if address < piece.end else None",
                "piece",
            ),
        )
    ),
    fault(
        "views of the same rows share their bytes",
        "simgpu._simulation.races.accesses:share_bytes",
        "if one[2] is None and other[2] is None:",
        "if True:",
        accesses.test_two_views_share_bytes_if_their_sets_do,
    ),
    fault(
        "steps between elements are steps between bytes",
        "simgpu._simulation.races.accesses:_bytes_within",
        "step * layout.itemsize",
        "step",
        accesses.test_two_views_share_bytes_if_their_sets_do,
    ),
    fault(
        "a tensor without dimensions is a number of the host",
        "simgpu._runtime.launch:is_host_number",
        "not tensor.dim() and tensor.untyped_storage().resizable()",
        "not tensor.dim()",
        parts.test_parts_race_if_they_have_a_number_in_common,
    ),
    fault(
        "a batch norm only reads its running statistics",
        "simgpu._runtime.operators:written",
        "unmarked and is_statistic",
        "False",
        accesses.test_running_statistics_are_written_where_a_batch_norm_trains,
        keepers=("simgpu._simulation.races.accesses:touched",),
    ),
    fault(
        "a batch norm writes its running statistics whether it trains or not",
        "simgpu._runtime.operators:trains",
        "if at is None:",
        "if True:",
        accesses.test_running_statistics_are_written_where_a_batch_norm_trains,
    ),
    fault(
        "an access touches all from its first byte to its last",
        f"{DETECTOR}._touch",
        "begin, end, layout, writes",
        "begin, end, None, writes",
        parts.test_parts_race_if_they_have_a_number_in_common,
    ),
    fault(
        "who used a part of memory is forgotten when more of it is used",
        "simgpu._simulation.races.regions:Regions.of",
        "region.accesses += piece.accesses",
        "pass",
        parts.test_parts_race_if_they_have_a_number_in_common,
    ),
    fault(
        "a line of torch is a place of the program",
        "simgpu._runtime.places:_is_foreign",
        " or file.startswith(_FOREIGN)",
        "",
        places.test_a_place_is_the_line_that_runs,
    ),
    fault(
        "all lines of a function are one place",
        "simgpu._runtime.places:place_of_caller",
        "id(frame.f_code), frame.f_lasti",
        "id(frame.f_code), 0",
        places.test_a_place_is_the_line_that_runs,
    ),
    fault(
        "code that is gone is taken for what lies at its address now",
        "simgpu._runtime.places:place_of_caller",
        "frame.f_code, text",
        "None, text",
        places.test_a_place_is_the_line_that_runs,
    ),
]
