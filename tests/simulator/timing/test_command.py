"""`simgpu run --clock`: what it prints, and the program with other numbers of devices."""

import argparse
import atexit
import contextlib
import io
import json
import os
import re
import subprocess
import tempfile
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._cli import estimates
from simgpu._cli.estimates import ClockUntilExit, scaling_table
from simgpu._profiling import timeline


def test_a_script_sees_estimated_time(python, tmp_path):
    script = (
        "import torch; x = torch.ones(2**20, device='cuda:1'); a, b = (torch.cuda.Event(True) "
        "for _ in 'ab'); torch.cuda.set_device(1); a.record(); x.neg_(); b.record(); "
        "b.synchronize(); print(a.elapsed_time(b))"
    )
    reported = ["--devices", 2, "--clock", "A100", "--topology", "nvlink"]
    ran = python("-m", "simgpu", "run", *reported, "--trace", tmp_path / "trace", "-c", script)
    assert ran.returncode == 0
    assert ran.stderr.startswith("estimate for 2 x A100, nvlink: "), ran.stderr
    milliseconds = (2e-6 + 2 * 2**22 / 1555e9) * 1e3
    assert abs(float(ran.stdout) - milliseconds) < 1e-9
    events = json.loads((tmp_path / "trace").read_text())["traceEvents"]
    (kernel,) = [event for event in events if event["name"] == "neg_"]
    assert abs(kernel["dur"] - milliseconds * 1e3) < 1e-6


def options_of(topology="pcie", model="A100", **given):
    """The options of a command line, whose program was given options of the same names."""
    program = ["program.py", "--devices", "N", "--estimate-to", "FILE"]
    own = {"clock": model, "topology": topology, "summary": True, "table": True}
    own["estimate_to"] = None
    return argparse.Namespace(**{**own, **given}, own=["--force"], program=program)


def printed_at_exit(options, run=None, environment=(), stdin=None, now=None):
    """What a command prints where its program ends: `run` takes the place of `subprocess.run`."""
    said = io.StringIO()

    def spied(command, **how):
        return run(command, said.getvalue(), **how)

    with contextlib.ExitStack() as replaced:
        replaced.enter_context(mock.patch.object(subprocess, "run", run and spied))
        if now is not None:
            replaced.enter_context(mock.patch.object(estimates, "_now", now))
        replaced.enter_context(contextlib.redirect_stderr(said))
        clock = ClockUntilExit(options, dict(environment), stdin)
        assert clock.start() is None
        torch.ones(2**20, device="simgpu:0").neg_()
        atexit.unregister(clock._end)
        clock._end()
    return said.getvalue()


def failed(command):
    return subprocess.CompletedProcess(command, 1, stderr=b"first\nno such thing\n")


def test_estimate_is_written_to_its_file_and_not_printed(simulated, tmp_path):
    assert printed_at_exit(options_of(estimate_to=tmp_path / "estimate")) == ""
    estimate = json.loads((tmp_path / "estimate").read_text())
    assert 2 * 2**22 / 1555e9 < estimate["seconds"] < 2e-3
    assert estimate["step"] is None


def test_the_program_runs_again_with_other_numbers_of_devices(simulated):
    commands = []

    def run(command, _, **options):
        count, file = command[6], command[8]
        commands.append(command)
        if count == "4":
            return failed(command)
        with open(file, "w") as report:
            json.dump({"seconds": 8.0 / int(count), "step": None}, report)
        assert options["cwd"] == os.getcwd()
        assert command[9:] == options_of().program
        assert options["input"] == b"read before"
        return subprocess.CompletedProcess(command, 0, stderr=b"")

    printed = printed_at_exit(options_of("nvlink"), run, stdin=b"read before")
    assert [command[6] for command in commands] == ["1", "2", "4"]
    assert printed.startswith("estimate for 8 x A100, nvlink")
    assert re.search(r"with 1, 2, 4 devices, .*: about \d+ s \(Ctrl-C ends it, --no-table", printed)
    ran = re.findall(r"^  (\d device)s?: ran for \d+ s$", printed, re.M)
    assert ran == ["1 device", "2 device", "4 device"]
    assert "the estimates cover the whole program" in printed
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines()[-4:]}
    assert rows["2"] == ["4", "s", "2.00"]
    assert rows["4"] == ["-", "-", "no", "such", "thing"]


RANKS = """
import os
import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(9, device="cuda"))
dist.destroy_process_group()
"""


@pytest.mark.full
def test_ranks_of_torchrun_are_not_run_again(python, tmp_path):
    """A single rank would wait for the others, for as long as its group has patience."""
    (tmp_path / "train.py").write_text(RANKS, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    reported = ["-m", "simgpu", "run", "--devices", "2", "--clock", "A100", "--summary", "train.py"]
    ran = python(*launcher, *reported, cwd=tmp_path, PYTHONWARNINGS="ignore")
    assert ran.returncode == 0, ran.stderr
    for rank in range(2):
        assert f"rank {rank} of 2\nestimate for 2 x A100" in ran.stderr
    assert ran.stderr.count("not run again with other numbers of devices") == 2
    assert "speed-up" not in ran.stderr


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "2"}])
@pytest.mark.parametrize("without", ["table", "summary"])
def test_the_table_can_be_left_out(simulated, environment, without):
    printed = printed_at_exit(options_of(**{without: False}), environment=environment)
    assert "estimate for 8 x A100" in printed
    assert "again" not in printed
    if environment and without == "summary":
        shares = r"simgpu:0 busy \([1-9]\d*%\), copying \(0%\), waiting \(\d+%\)"
        assert re.fullmatch(rf"rank 0 of 2: [^;]*; {shares}; longest part: .*\n", printed)
    assert ("simgpu:7 " in printed) == (not environment)  # idle: of interest in a single process


@given(seconds=st.integers(0, 300), count=st.sampled_from([1, 3, 8]))
def test_the_time_of_the_table_is_said_before(seconds, count):
    runs = []

    def run(command, said, **_):
        runs.append(said)
        return failed(command)

    with simgpu.devices(count):
        printed_at_exit(options_of(), run, now=iter([0, *[seconds] * 20]).__next__)
    assert len(runs) == (4 if count == 3 else 3)
    assert f"about {max(1, seconds * len(runs))} s (" in runs[0]


ALONE = st.sampled_from(
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "0"},
        {"RANK": "0"},
        {"RANK": "first", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "many"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
    ]
)
ONE_OF_SEVERAL = st.integers(2, 9).flatmap(
    lambda count: st.builds(
        lambda rank: {"RANK": str(rank), "WORLD_SIZE": str(count)}, st.integers(0, count - 1)
    )
)


@given(reported=st.tuples(ALONE, st.just(True)) | st.tuples(ONE_OF_SEVERAL, st.just(False)))
def test_only_a_single_process_is_run_again(reported):
    environment, single = reported
    commands = []

    def run(command, said, **_):
        assert "running it again with 1, 4, 8 devices" in said
        commands.append(command)
        assert command[6] != "N"
        return failed(command)

    with simgpu.devices(2):
        printed = printed_at_exit(options_of(), run, environment)
    assert len(commands) == (3 if single else 0)
    whose = "" if single else f"rank {environment['RANK']} of {environment['WORLD_SIZE']}\n"
    assert printed.startswith(f"{whose}estimate for 2 x A100")
    assert ("not run again" in printed) == (not single)


@given(until=st.integers(0, 4))
def test_ctrl_c_ends_the_further_runs_and_keeps_the_table(until):
    commands = []

    def run(command, *_, **__):
        commands.append(command)
        if len(commands) > until:
            raise KeyboardInterrupt
        return failed(command)

    with simgpu.devices(8):
        printed = printed_at_exit(options_of(), run)
    rows = [line.split()[-1] for line in printed.splitlines()[-4:-1]]
    assert rows == (["thing"] * until + ["interrupted"] * 3)[:3]
    assert len(commands) == min(until + 1, 3)


@given(environment=ALONE)
def test_a_single_process_writes_its_own_timeline(environment):
    with tempfile.TemporaryDirectory() as folder:
        timeline.write(os.path.join(folder, "trace.json"), {"traceEvents": []}, environment)
        assert os.listdir(folder) == ["trace.json"]


def test_impossible_clock_is_explained(simulated):
    reported = ClockUntilExit(options_of("nvlink", "A1000"), {}, None).start()
    assert reported.startswith("--clock A1000 --topology nvlink: ")
    assert "V100" in reported


def test_steps_are_compared_where_all_have_some():
    steps = {1: {"seconds": 9.0, "step": 0.5}, 2: {"seconds": 8.0, "step": 0.25}}
    table = scaling_table(steps)
    assert "estimate of a step" in table
    assert "2.00" in table
    assert "250 ms" in table
