"""`simgpu run`: a program with devices, arguments, children; its timeline and table.

Here its options are taken together; what each does is in the other files of this folder.
"""

import json
import os
import tempfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._core import hooks
from simgpu._profiling.summary import watch
from simgpu._profiling.timeline import Timeline
from tests.support.observe import place

SCRIPT = """
import sys, torch
print(sys.argv[1:], __name__, torch.simgpu.device_count())
print(torch.ones(2, device="simgpu:1").sum().device)
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def test_variable_gives_a_process_its_devices(python, script):
    done = python(script(SCRIPT), "x", SIMGPU_DEVICE_COUNT="5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['x'] __main__ 5", "simgpu:1"]


CUDA_SCRIPT = """
import subprocess, sys, torch
from torch import nn
model = nn.DataParallel(nn.Linear(5, 2)).cuda()
out = model(torch.randn(30, 5))
print(torch.cuda.device_count(), out.device, type(model).__module__)
if len(sys.argv) > 1:
    asks = "import torch; print(torch.ones(1, device='cuda:2').device)"
    print(subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True).stdout)
"""


@pytest.mark.full
def test_script_for_cuda_and_its_children_have_devices(python, script):
    done = python("-m", "simgpu", "run", "--devices", 4, script(CUDA_SCRIPT), "x")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[0] == "4 cuda:0 torch.nn.parallel.data_parallel"
    assert lines[1] == "cuda:2"
    assert done.stderr == ""


def test_timeline_and_table_show_all_work(python, script, tmp_path):
    timeline = tmp_path / "out.json"
    watch = ("--trace", timeline, "--summary")
    done = python("-m", "simgpu", "run", "--devices", 3, *watch, script(CUDA_SCRIPT))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 cuda:0 torch.nn.parallel.data_parallel\n"
    heading, *rows = [line.split() for line in done.stderr.splitlines()]
    assert heading == ["device", "kernels", "in", "out", "peak", "memory", "work", "batch"]
    assert [row[0] for row in rows] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [row[-1] for row in rows] == ["33.3%"] * 3
    shares = [float(row[-2].rstrip("%")) for row in rows]
    assert shares[0] > shares[1] == shares[2] > 0  # device 0 also gathers
    assert abs(sum(shares) - 100) < 0.2
    # In: 10 of 30 rows of 5 numbers, and 2x5 weights with 2 biases. Out: 10 rows of 2.
    assert rows[1][2:6] == ["248", "bytes", "80", "bytes"]
    check_timeline(json.loads(timeline.read_text())["traceEvents"])


def check_timeline(events):
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(processes.values()) == ["cuda:0", "cuda:1", "cuda:2", "host"]
    slices = [e for e in events if e["ph"] == "X"]
    assert {processes[e["pid"]] for e in slices if e["cat"] == "kernel"} == set(
        processes.values()
    ) - {"host"}
    # Every copy is a slice at both ends, and an arrow from one to the other.
    copies = [e for e in slices if e["cat"] == "copy"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(copies) == 2 * len(starts)
    assert starts.keys() == ends.keys()
    assert {processes[e["pid"]] for e in ends.values()} >= {"cuda:0", "cuda:1", "cuda:2"}
    for number, start in starts.items():
        ends_of_it = [e for e in copies if e["ts"] == start["ts"]]
        assert {e["pid"] for e in ends_of_it} == {start["pid"], ends[number]["pid"]}
        assert {e["args"]["from"] for e in ends_of_it} == {processes[start["pid"]]}
    # The input is on the host: its chunks travel on streams of their own.
    assert sum(e["tid"] > 0 for e in ends.values()) == 3
    titles = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert titles.keys() == {(e["pid"], e["tid"]) for e in slices}
    memory = [e for e in events if e["ph"] == "C"]
    assert len(memory) == len(slices) - len(starts)
    assert max(e["args"]["bytes"] for e in memory) >= 512


OUTLIVING = """
import atexit, os, sys, threading, torch
from concurrent.futures import ThreadPoolExecutor

if os.fork() == 0:
    sys.exit()
os.wait()

def compute():
    for _ in range(50):
        torch.ones(10, device="cuda:1").add_(1)

def late():
    threading.main_thread().join()
    compute()

ThreadPoolExecutor(1).submit(compute)  # its worker waits until the process ends
threading.Thread(target=late).start()
atexit.register(lambda: torch.ones(10, device="cuda:0"))
FAIL
"""


@pytest.mark.full
@pytest.mark.parametrize("end", ["", "raise KeyError('lost')"])
def test_threads_that_outlive_the_script_are_watched(python, script, tmp_path, end):
    timeline = tmp_path / "out.json"
    watch = ("--trace", timeline, "--summary")
    path = script(OUTLIVING.replace("FAIL", end))
    done = python("-m", "simgpu", "run", "--devices", 2, *watch, path)
    assert done.returncode == bool(end)
    assert "lost" in done.stderr or not end
    table = done.stderr[done.stderr.index("device ") :]
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [
        ["cuda:0", "1"],
        ["cuda:1", "200"],
    ]
    events = json.loads(timeline.read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == 302


PROGRAM = """
import sys, torch
from torch import nn
from torch.nn.parallel.data_parallel import DataParallel  # as synchronized batch norms do

model = DataParallel(nn.Linear(3, 2).to("simgpu:0"))
assert type(model) is nn.DataParallel is nn.parallel.DataParallel
print(type(model).__module__, sys.argv[1:])
print(torch.simgpu.get_rng_state(0).numel() == torch.get_rng_state().numel())
for k in range(2):
    device = torch.simgpu.get_device_properties(k)
    print(device.name, device.total_memory)
x = torch.ones(3, device="simgpu:1") + 1
with torch.simgpu.stream(torch.simgpu.Stream(1)):
    print((x * 2).tolist())  # has not waited
"""
DEVICES = ("--devices", 2, "--memory", "3GiB,4GiB", "--model", "A100,H100")
NAMES = ("--rng", "host", "--as", "simgpu", "--force", "--replace-data-parallel")


def test_run_takes_its_options_together(python, tmp_path):
    watch = ("--async", "--races", "--strict", "--summary", "--trace", tmp_path / "trace.json")
    done = python("-m", "simgpu", "run", *DEVICES, *NAMES, *watch, "-c", PROGRAM, "--flag")
    assert done.returncode == 1, done.stderr  # a race
    assert done.stdout.splitlines() == [
        "dataparallel.data_parallel ['--flag']",
        "True",
        f"NVIDIA A100-SXM4-40GB {3 * 2**30}",
        f"NVIDIA H100 80GB HBM3 {4 * 2**30}",
        "[nan, nan, nan]",
    ]
    assert "simgpu run --races: 1 race" in done.stderr
    assert [line[:8] for line in done.stderr.splitlines()[-2:]] == ["simgpu:0", "simgpu:1"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


SMI_SCRIPT = """
import json, os, subprocess, sys, torch
child = '''
import sys, torch
x = torch.empty(30 * 2**20, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
'''
def asked(*words, **more):
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, **more).stdout
def apps():
    query = "--query-compute-apps=gpu_bus_id,pid,used_memory"
    rows = asked("nvidia-smi", query, "--format=csv,noheader,nounits").splitlines()
    return [row.split(", ") for row in rows]
def start(number):
    started = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "CUDA_VISIBLE_DEVICES": str(number)})
    assert started.stdout.readline() == "ready\\n"
    return started
seen = [apps()]
x = torch.empty(2 * 2**20, dtype=torch.uint8, device="cuda")
one, two = start(1), start(2)
seen.append(apps())
outside = {name: value for name, value in os.environ.items() if not name.startswith("SIMGPU")}
print(asked(sys.executable, "-m", "simgpu", "smi", env=outside), file=sys.stderr)
one.kill(), one.wait()
two.communicate()
seen.append(apps())
pids = os.getpid(), one.pid, two.pid
print(json.dumps([pids, seen, len(torch.cuda._raw_device_uuid_nvml())]))
"""


@pytest.mark.full
def test_nvidia_smi_shows_all_processes_of_a_run(python, script):
    """And `simgpu smi` from anywhere. One that has ended, or was killed, is gone."""
    done = python("-m", "simgpu", "run", "--devices", 3, "--model", "A100", script(SMI_SCRIPT))
    assert done.returncode == 0, done.stderr
    pids, seen, count = json.loads(done.stdout)
    own, *others = [
        [f"00000000:0{number + 1}:00.0", str(pid), str(size)]
        for number, (pid, size) in enumerate(zip(pids, [20, 30, 30], strict=True))
    ]
    assert count == 3
    assert seen == [[], [own, *others], [own]]
    _, mine, table = done.stderr.partition(f"script.py (process {pids[0]})\n")
    assert mine
    for number, (pid, size) in enumerate(zip(pids, [20, 30, 30], strict=True)):
        (row,) = [line for line in table.splitlines() if f" {pid} " in line]
        assert row.split()[1] == str(number)
        assert row.endswith(f" {size}MiB |")
    after = python("-m", "simgpu", "smi")
    assert f"(process {pids[0]})" not in after.stdout


def test_program_runs_where_no_folder_can_be_made(python, tmp_path):
    (tmp_path / f"simgpu-{os.getuid()}").write_text("a file")
    code = "import torch; print(torch.ones(1, device='cuda').device)"
    done = python("-m", "simgpu", "run", "-c", code, TMPDIR=tmp_path)
    assert (done.returncode, done.stdout) == (0, "cuda:0\n")
    assert "simgpu run: no nvidia-smi shows these devices: " in done.stderr


@pytest.mark.without("--races", reason="reads on a stream that has not waited")
@given(
    steps=st.lists(
        st.tuples(st.integers(-1, 3), st.integers(-1, 3), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_counter_shows_the_memory_of_its_device(simulated, steps):
    """Of the one where the work is queued, as much as is taken when that work ends."""
    timeline, names, held, expected = Timeline(), [str(d) for d in simulated], [], []
    for slot, to, blocks, side in steps:
        source, target = place(slot, simulated), place(to, simulated)
        if side:
            held.clear()  # so that the most there was is not what there is
        x = torch.empty(blocks * 512, dtype=torch.uint8, device=source)
        stream = torch.simgpu.Stream(source if slot >= 0 else simulated[0])
        with torch.simgpu.stream(stream if side else None):
            hooks.add(timeline)
            try:
                held += [x.to(target, copy=True), x]
            finally:
                hooks.remove(timeline)
        queue = source if slot >= 0 else target
        if queue.type != "cpu":
            # What came out of it is not counted yet.
            own = torch.simgpu.memory_allocated(queue) - (target == queue) * blocks * 512
            number = stream.stream_id if side and stream.device == queue else 0
            expected.append((queue.index + 1, own, number))
    events = timeline.as_json(names)["traceEvents"]
    counters = [(e["pid"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counters == [(pid, nbytes) for pid, nbytes, _ in expected]
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert all(titles[pid] == names[pid - 1] for pid, _ in counters)
    rows = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert {(pid, number) for pid, _, number in expected} <= rows
    assert rows == {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}


@given(
    environment=st.dictionaries(
        st.sampled_from(["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"]),
        st.sampled_from(["0", "1", "2", "a run"]),
    ),
    moves=st.booleans(),
)
def test_timeline_is_written_once_in_the_first_folder(simulated, environment, moves):
    """The file is that of the process as it began, in the folder where it began."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as other,
        pytest.MonkeyPatch.context() as patches,
    ):
        patches.chdir(folder)
        with watch("trace.json", None):
            for name, value in environment.items():
                patches.setenv(name, value)
            patches.chdir(other if moves else folder)
        patches.undo()
        assert os.listdir(folder) == ["trace.json"]
        assert os.listdir(other) == []
