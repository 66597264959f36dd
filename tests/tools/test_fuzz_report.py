"""What a fuzzing run writes: source of examples, the page, the progress line."""

import argparse
import contextlib
import dataclasses
import inspect
import io
import json
import re
import shlex
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from simgpu import strategies
from simgpu._cli import fuzz
from simgpu._fuzz import campaign, report
from simgpu._fuzz.campaign import Progress
from simgpu._fuzz.failures import NotReproducible, Writer
from simgpu._fuzz.tally import Failure, Tally
from simgpu._strategies.examples import Drawn
from tests.support.observe import Case
from tests.support.strategies import Pair


@dataclasses.dataclass
class Local:
    number: int


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
    | st.sampled_from((torch.float32, torch.device("cpu"), range(3))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner)
    | st.builds(Pair, inner, inner),
)  # fmt: skip


def made(writer, source, **names):
    space = dict(names)
    exec("\n".join(writer.imports), space)
    return eval(source, space)


@given(
    value=plain_values
    | st.builds(Case, st.text(), st.tuples(st.integers()), st.tuples())
    | st.complex_numbers()
    | st.floats()
)
def test_source_makes_the_value_again(value):
    """Numbers to the bit."""
    writer = Writer()
    again = made(writer, writer.write(value))
    assert repr(again) == repr(value)  # in which a NaN equals itself, and -0.0 no 0.0
    assert again == value or isinstance(value, float | complex)
    assert type(again) is type(value)


def test_source_of_devices_has_their_index(devices):
    writer = Writer(devices)
    source = writer.write(Pair(devices[::-1], 3))
    assert made(writer, source, devices=devices) == Pair(devices[::-1], 3)
    assert "devices[0]" in source
    assert devices[0].type not in source


@given(data=st.data(), overwritten=st.booleans())
def test_source_of_a_tensor_has_the_drawn_values(devices, data, overwritten):
    """To the bit and the stride, whatever the property has written to it since."""
    device = data.draw(st.sampled_from(["cpu", *devices]))
    drawn = data.draw(strategies.tensors(device=device))
    wanted = drawn.clone()
    if overwritten:
        drawn.zero_()
    writer = Writer(devices)
    again = made(writer, writer.write(drawn), devices=devices)
    assert again.equal(wanted)
    alike = (drawn.dtype, drawn.device, drawn.stride(), drawn.storage_offset())
    assert alike == (again.dtype, again.device, again.stride(), again.storage_offset())


@given(net=strategies.modules())
def test_source_of_a_network_has_its_arguments(net):
    writer = Writer()
    assert repr(made(writer, writer.write(net))) == repr(net)


@pytest.mark.parametrize("value", [object(), lambda: 0, torch.ones(2), Local, Pair])
def test_missing_source_is_reported(value):
    with pytest.raises(NotReproducible, match="no source is known"):
        Writer().write([value])


def test_drawn_gives_the_values_in_order_and_no_more():
    data = Drawn([1, [2]])
    assert [data.draw(st.integers()), data.draw(st.lists(st.integers()), label="x")] == [1, [2]]
    assert repr(data) == "Drawn([1, [2]])"  # as pytest shows it when the test has failed
    with pytest.raises(IndexError, match="more values"):
        data.draw(st.integers())


RUN = {
    "seconds": 2.0, "start_seconds": 1.5, "jobs": 2, "devices": [1, 3], "torch": "2",
    "hypothesis": "6", "date": "today", "database": "kept",
}  # fmt: skip

FAILURE = Failure(
    property="tests/test_x.py::test_x[<1>]", error="ValueError", message="a < b & c",
    location="x.py:1", combination=(2, 2), example="n=2", test=None, hypothesis="6.1", blob="AAA=",
    schedule="S1fAQA",
)  # fmt: skip


@pytest.mark.parametrize("blob", ["AAA=", None])
@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("as_cuda", [True, False])
def test_command_of_a_failure_has_the_options_of_the_campaign(as_cuda, drawn, blob):
    """Without --schedules the numbers of threads would be taken for those of the arguments."""
    failure = dataclasses.replace(FAILURE, blob=blob)
    command = report.replay_command(failure, {**RUN, "schedules": drawn, "as_cuda": as_cuda})
    parser = argparse.ArgumentParser()
    fuzz.add_arguments(parser.add_subparsers())
    options = parser.parse_args(shlex.split(command)[3:])
    assert (options.property, options.blob) == (failure.property, blob)
    assert ("--database kept" in command) == (blob is None)
    assert (options.schedules, options.as_cuda, options.devices) == (drawn, as_cuda, (1, 3))


@given(as_cuda=st.booleans(), lines=st.lists(st.sampled_from(["", "one", "2" * 400]), max_size=4))
def test_summary_has_the_beginning_of_each_message(as_cuda, lines):
    tally, words = Tally(), "Torch not compiled with CUDA enabled"
    tally.failures["key"] = dataclasses.replace(FAILURE, message="\n".join([*lines, words]))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        campaign._print_summary(tally, {**RUN, "as_cuda": as_cuda}, Path("page.html"))
    shown = out.getvalue().splitlines()[4]
    expected = " ".join([line for line in [*lines, words] if line][:2])
    assert shown[4:304] == expected[:300]
    assert ("option --as-cuda" in out.getvalue()) == (not as_cuda)


class Page(HTMLParser):
    """Reads the report: what it would load, the cells of its map, its text."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.cells, self.words = [], {}, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.loads += [name for name in ("src", "href") if name in attributes]
        self.loads += [tag] if tag in ("script", "link", "img", "iframe") else []
        title = re.match(r"batch (\d+|over 64) on (\d) devices?: (.*)", attributes.get("title", ""))
        if title:
            self.cells[title[1], int(title[2])] = title[3]

    def handle_data(self, data):
        self.words += data


def test_page_needs_no_network_and_shows_every_combination():
    tally = Tally()
    tally.examples["<script>1</script>"] = 12
    tally.combinations.update({(2, 2): 5, (64, 3): 1, (100, 1): 4, (200, 1): 2})
    tally.failed[2, 2] = 3
    long = "assert " + "<&>" * 2000
    odd = {"message": long, "example": "</pre><img src=x>", "test": "<b>3", "location": "<i>4"}
    tally.failures = {"key": FAILURE, "odd": dataclasses.replace(FAILURE, **odd)}
    html = report.as_html(tally, RUN)
    page = Page(html)
    assert page.loads == []
    assert len(page.cells) == 66 * 3
    assert page.cells["2", 2] == "5 examples, 3 failed"
    assert page.cells["64", 3] == "1 example, 0 failed"
    assert page.cells["over 64", 1] == "6 examples, 0 failed"
    others = {text for text in page.cells.values() if "example" not in text}
    assert others == {"never tried"}
    assert "12 examples of 1 property in 2 s (24 per second)" in " ".join(page.words.split())
    for text in ("<script>1</script>", long, "</pre><img src=x>", "<b>3", "<i>4"):
        assert text in page.words
    for text in (
        "2 failures",
        FAILURE.property,
        "python -m simgpu replay 'tests/test_x.py::test_x[<1>]' AAA= --devices 1..3",
        "@reproduce_failure('6.1', b'AAA=')",
        "in the order of threads S1fAQA",
        "193 of 195 combinations",
    ):
        assert text in page.words
    folded = re.findall(r"<details><summary><code>(.*?)</code></summary><pre>(.*?)</pre>", html)
    assert len(folded) == 1
    assert "no failures" in Page(report.as_html(Tally(), RUN)).words


def test_page_without_batches_shows_how_to_report_them():
    """Without strategies.batches nothing is known of combinations, and none is "never tried"."""
    tally = Tally()
    tally.examples["a"] = 3
    page = Page(report.as_html(tally, RUN))
    assert "3 examples of 1 property" in page.words
    assert "never tried" not in page.words.lower()
    assert page.cells == {}
    for way in ("simgpu.strategies.batches", "tried(batch=..., devices=...)", "tried(error=...)"):
        assert way in page.words
    assert report.as_json(tally, RUN)["never_tried"] is None


def test_page_of_a_stopped_run_counts_its_properties():
    tally = Tally()
    tally.properties, tally.finished = 3, {"a"}
    assert "1 of 3 properties were tried to the end" in report.as_html(tally, RUN)
    tally.finished = {"a", "b", "c"}
    assert "to the end" not in report.as_html(tally, RUN)


@given(numbers=st.sets(st.integers(0, 30)))
def test_ranges_name_every_number(numbers):
    text = report.ranges(numbers)
    named = set()
    for part in filter(None, text.split(", ")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers
    assert len(text.split(", ")) <= max(1, len(numbers))


@given(message=st.text("<\n\u00e9\udcff"))
def test_any_message_is_written(tmp_path, message):
    tally = Tally()
    tally.failures["key"] = dataclasses.replace(FAILURE, message=message)
    report.write(tally, RUN, tmp_path / "page.html")
    (failure,) = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))["failures"]
    assert failure["message"] == message
    assert FAILURE.property[:10] in (tmp_path / "page.html").read_text(encoding="utf-8")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_line_shows_the_time_that_is_left(monkeypatch):
    tally = Tally()
    tally.properties = 4
    tally.examples.update({"a": 7, "b": 1000, "c": 50})
    tally.finished = {"a", "b"}  # `a` has only seven examples
    assert tally.done(100) == 250
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = Progress(None, 100)
    progress.bar._time = lambda: progress.bar.start_t + 60
    progress.show(tally, 60.0)
    progress.show(tally, 65.0)  # not yet the time for another line
    progress.close()
    (line,) = sys.stderr.getvalue().splitlines()
    assert re.match(r" 62% \|.*\| 01:00<00:36, 1057 examples \(18/s\), 0 comb.*, 0 fail", line)

    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = Progress(10.0, None)
    progress.show(Tally(), 30.0)  # not counted
    assert "  0% |" in sys.stderr.getvalue()
    assert "collecting tests" in sys.stderr.getvalue()
    progress.bar._time = lambda: progress.bar.start_t + 150
    progress.show(tally, 150.0)
    progress.show(tally, 150.5)
    progress.close()
    line = next(line for line in sys.stderr.getvalue().split("\r") if "20%" in line)
    assert re.match(r" 20% .*02:30<10:00, 1057 examples \(9/s\)", line)
    assert "\n" not in sys.stderr.getvalue()


@pytest.mark.parametrize("reported", ["1", "7"])
def test_progress_line_ignores_the_variables_of_tqdm(python, reported):
    names = inspect.signature(tqdm.__init__).parameters
    variables = {f"TQDM_{name.upper()}": reported for name in {*names} - {"self", "kwargs"}}
    program = (
        "from simgpu._fuzz.campaign import Progress; from simgpu._fuzz.tally import Tally;"
        "tally = Tally(); tally.properties = 1; Progress(1.0, None).show(tally, 15.0)"
    )
    assert " 25% |" in python("-c", program, **variables).stderr
