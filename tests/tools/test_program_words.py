"""`simgpu run` reads its own options; the program gets the same arguments as from `python`."""

import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.__main__ import main
from simgpu._cli.estimates import again as run_again
from simgpu._cli.run_script import Program

# Options, what they say, and the ways to name a program; a program `here` is a file.
OPTIONS = [
    (["--devices", "3"], {"devices": 3}),
    (["--dev=3"], {"devices": 3}),
    (["--memory", "-1GiB"], {"memory": "-1GiB"}),
    (["--mem", "1GiB,2GiB"], {"memory": "1GiB,2GiB"}),
    (["--async-seed", "-4"], {"async_seed": -4}),
    (["--races"], {"races": True}),
    (["--summ"], {"summary": True}),
]
WAYS = [
    (["-c", "-1"], "code", "-1"),
    (["-c", ""], "code", ""),
    (["-cprint(1); --x"], "code", "print(1); --x"),
    (["-m", "json.tool"], "module", "json.tool"),
    (["-mjson.tool"], "module", "json.tool"),
    (["{here}"], "script", "{here}"),
    (["--", "{here}"], "script", "{here}"),
    (["-"], "stdin", "-"),
    (["--", "-"], "stdin", "-"),
]
ARGUMENTS = ["", "-", "--", "-m", "-cx", "x", "--devices", "--devices=4", "-h", "N", "FILE"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "here.py"
    path.write_text("")
    return str(path)


@given(
    options=st.lists(st.sampled_from(OPTIONS), max_size=3),
    way=st.sampled_from(WAYS),
    arguments=st.lists(st.sampled_from(ARGUMENTS), max_size=4),
)
def test_words_after_the_program_are_its_arguments(here, options, way, arguments):
    named, kind, text = way
    words = [word for option, _ in options for word in option]
    words += [word.format(here=here) for word in named]
    ran = []
    runs = {
        "make_devices": lambda _: None,
        "prepare": lambda _: None,
        "run_script": lambda *given: ran.append(given),
    }
    stdin = mock.Mock(**{"buffer.read.return_value": b"given"})
    clock = mock.Mock(return_value=mock.Mock(start=lambda: None))
    runs["ClockUntilExit"] = clock
    with mock.patch.multiple("simgpu._cli.run", **runs), mock.patch.object(sys, "stdin", stdin):
        assert main(["run", "--clock", "A100", *words, *arguments]) == 0
        reported, _, read = clock.call_args.args
        again = run_again(reported, 2, Path(f"{here}.json"))
        assert main(again[again.index("run") :]) == 0
    (program, said), (program_again, said_again) = ran
    assert program_again == program  # with other numbers of devices, too
    assert (said_again.devices, said_again.races, said_again.summary) == (2, False, False)
    source = b"given" if kind == "stdin" else None
    assert program == Program(kind, text.format(here=here), tuple(arguments), source)
    assert read == source
    for _, values in options:
        for name, value in values.items():
            assert getattr(said, name) == value or sum(name in each for _, each in options) > 1
