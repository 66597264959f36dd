"""The line of a program that asked for something, as reports name it."""

from hypothesis import given
from hypothesis import strategies as st

from simgpu._runtime.places import place_of_caller

files = st.sampled_from(["one.py", "two.py", "three.py"])


@given(programs=st.lists(st.tuples(files, st.lists(st.integers(0, 2), min_size=1)), min_size=2))
def test_a_place_is_the_line_that_runs(programs):
    """Also where a program that has ended leaves the address of its code to the next one."""
    for file, gaps in programs:
        found, wanted, text = [], [], ""
        for gap in gaps:
            text += "\n" * gap + "found.append(place())\n"
            wanted.append(f"{file}:{text.count(chr(10))}")
        exec(compile(text, file, "exec"), {"found": found, "place": place_of_caller})
        assert found == wanted
