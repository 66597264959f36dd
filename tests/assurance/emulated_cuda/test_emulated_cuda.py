"""The tool itself: the stubs, and a process on emulated GPUs."""

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.assurance.emulated_cuda import build, record, stubs, suite
from tests.assurance.emulated_cuda.environment import MODELS, ROOT, Hardware, Machine
from tests.assurance.expected import Entry

HEADER = """
/* int cublasOld(int a); */
cublasStatus_t CUBLASWINAPI cublasCreate(
    cublasHandle_t* handle, const float* alpha, double beta, int* info);
const char* cublasName(void);
"""
DRIVER = """
#include <cstdio>
extern "C" int cublasCreate(void**, const float*, double, int*);
extern "C" const char* cublasName();
extern "C" void emulated_library_call(const char* name) { puts(name); }
extern "C" int check() {
  void* handle = nullptr;
  float alpha = 2;
  int info = 7;
  int error = cublasCreate(&handle, &alpha, 3.0, &info);
  return error == 0 && handle && alpha == 2 && info == 0 && cublasName()[0];
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles C++")
def test_stubs_fill_results_and_leave_inputs(tmp_path):
    include = tmp_path / "nvidia" / "x"
    include.mkdir(parents=True)
    (include / "cublas.h").write_text(HEADER)
    declared = stubs.declarations(tmp_path)
    assert set(declared) == {"cublasCreate", "cublasName"}
    head = (
        '#include <cstdlib>\n#include <cstring>\n#define API extern "C"\n'
        'extern "C" void emulated_library_call(const char*);\n'
    )
    text = head + "".join(stubs.stub(name, declared) for name in declared)
    (tmp_path / "stubs.cpp").write_text(text)
    (tmp_path / "driver.cpp").write_text(DRIVER)
    command = ["g++", "-w", "-shared", "-fPIC", "stubs.cpp", "driver.cpp", "-o", "both.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert ctypes.CDLL(str(tmp_path / "both.so")).check() == 1


def _has_cuda():
    return (build.site_packages() / "torch" / "lib" / "libtorch_cuda.so").exists()


def test_build_without_cuda_names_the_missing_build(tmp_path, monkeypatch):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "version.py").write_text("")
    monkeypatch.setattr(build, "site_packages", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(build.BuildError, match="a build without CUDA"):
        build.build()


needs_cuda_build = pytest.mark.skipif(not _has_cuda(), reason="torch is a build without CUDA")


@pytest.fixture
def printed(tmp_path):
    """What a Python program on emulated GPUs prints, as JSON."""

    def run(code, **machine):
        path = tmp_path / "program.py"
        path.write_text(code)
        done = subprocess.run(
            [sys.executable, path],
            cwd=ROOT,
            env=Machine(**machine).environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@needs_cuda_build
@pytest.mark.parametrize("model", MODELS)
def test_machine_has_the_devices_asked_for(printed, model):
    code = (
        "import json, torch\n"
        "p = torch.cuda.get_device_properties(2)\n"
        "print(json.dumps([torch.cuda.device_count(), p.name, p.total_memory]))"
    )
    count, name, memory = printed(code, devices=3, model=model, memory=1 << 30)
    assert (count, memory) == (3, 1 << 30)
    assert model in name.lower()


@needs_cuda_build
def test_copies_are_real_and_kernels_are_repeated_for_values(printed):
    code = """
import json, torch
x = torch.arange(4.0).to("cuda:1").to("cuda:0")
without = (x + 1).tolist()
from tests.assurance.emulated_cuda import values
values.switch_on()
sums = [(x + 1).tolist(), sum(values.computed.values())]
print(json.dumps([x.tolist(), without == [1, 2, 3, 4], *sums]))
"""
    assert printed(code, devices=2) == [[0, 1, 2, 3], False, [1, 2, 3, 4], 1]


@needs_cuda_build
def test_values_are_those_of_the_cpu_also_within_other_operators(printed):
    code = """
import json, torch
from tests.assurance.emulated_cuda import values
values.switch_on()
x = torch.tensor([1, 5, 3, 2], device="cuda:0")
halves = torch.tensor([0.5, 0.25], dtype=torch.complex32, device="cuda:0")
print(json.dumps([
    torch.isin(x, torch.tensor([5, 2] * 40, device="cuda:0")).tolist(),
    torch.bincount(x).tolist(),
    x[x > 2].tolist(),
    halves.sum().to(torch.complex64).real.item(),
    torch.linalg.eigvals(torch.diag(x.double())).real.sort().values.tolist(),
]))
"""
    assert printed(code, devices=1) == [
        [False, True, False, True],
        [0, 1, 1, 1, 0, 1],
        [5, 3],
        0.75,
        [1, 2, 3, 5],
    ]


BESIDE = """
import json, torch, simgpu

def backward(device):
    x = torch.ones(3, device=device, requires_grad=True)
    (x * 2).sum().backward()
    return [str(x.grad.device), str(torch.accelerator.current_accelerator())]

seen = [backward("cuda:1")]
with simgpu.devices(2):
    seen += [backward("cuda:1"), backward("simgpu:1")]
seen += [backward("cuda:1")]
with simgpu.devices(2):
    seen += [backward("simgpu:1")]
print(json.dumps(seen))
"""


@needs_cuda_build
def test_backward_works_on_gpus_beside_simulated_devices(printed):
    within = "simgpu"
    assert printed(BESIDE, devices=2) == [
        ["cuda:1", "cuda"],
        ["cuda:1", within],
        ["simgpu:1", within],
        ["cuda:1", "cuda"],
        ["simgpu:1", within],
    ]


PINNED = """
import json, torch, simgpu
with simgpu.devices(2):
    print(json.dumps([torch.empty(3, pin_memory=pin).is_pinned() for pin in (False, True)]))
"""


@needs_cuda_build
def test_memory_that_cuda_pinned_is_pinned_before_a_gpu_has_a_tensor(printed):
    assert printed(PINNED, devices=2) == [False, True]


SHARE = """
import json, torch, torch.multiprocessing as mp

def change(tensor, queue):
    tensor.cpu()
    tensor.copy_(torch.full((3,), 7.0))
    queue.put(str(tensor.device))

if __name__ == "__main__":
    mp.set_start_method("spawn")
    tensor, queue = torch.zeros(3, device="cuda:1"), mp.Queue()
    one = mp.Process(target=change, args=(tensor, queue))
    one.start()
    device = queue.get()
    one.join()
    print(json.dumps([device, tensor.cpu().tolist()]))
"""


@needs_cuda_build
def test_processes_share_memory_by_handles(printed):
    assert printed(SHARE, devices=2) == ["cuda:1", [7.0, 7.0, 7.0]]


def test_entry_matches_parameters_and_names():
    entry = Entry("a reason", ("a.py::test[Nested *", "b.py::test_*", "C.test_[13]d"))
    matching = ["a.py::test[Nested add]", "b.py::test_it[1]", "C.test_1d"]
    other = ["a.py::test[add]", "a.py::test", "b.py::other", "C.test_2d"]
    assert [test for test in matching + other if entry.means(test)] == matching


def test_a_crash_costs_one_case_and_a_lost_gpu_none(monkeypatch):
    def process(command, **options):
        given, out = map(Path, command[-2:])
        lines = []
        for case in json.loads(given.read_text())[1]:
            if case == "crashes":
                break
            lines.append(json.dumps(case))
            if case == "loses the GPU":
                break
        out.write_text("\n".join(lines))
        return SimpleNamespace(returncode=-11 if case == "crashes" else record.GPU_IS_LOST)

    monkeypatch.setattr(record.subprocess, "run", process)
    cases = ["a", "crashes", "crashes", "b", "loses the GPU", "c"]
    seen = record._seen("api", cases, SimpleNamespace(environment=dict))
    crashed = [record.CRASHED, -11]
    assert seen == ["a", crashed, crashed, "b", "loses the GPU", "c"]


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"], ["b"]])
def test_compare_fails_for_any_subject_that_differs(monkeypatch, capsys, names):
    differs = record.recordings.Replay(cases=2, wrong=[({"call": "x"}, 1, 2)])
    found = {"a": differs, "b": record.recordings.Replay(cases=2, agreed=2)}
    monkeypatch.setattr(record, "record", lambda name, machine: {"cases": [name]})
    monkeypatch.setattr(
        record.recordings, "replay_on_simulated", lambda recording, _: found[recording["cases"][0]]
    )
    assert record.compare(names, Machine()) == ("a" in names)
    assert ("simulated 2" in capsys.readouterr().out) == ("a" in names)


REPORTED = """
import pytest
@pytest.fixture
def broken(): raise ValueError("in setup")
@pytest.fixture
def untidy():
    yield
    raise ValueError("in teardown")
def test_passes(): pass
def test_setup(broken): pass
def test_teardown(untidy): pass
def test_skipped(): pytest.skip("for a reason")
"""


def test_outcomes_have_errors_of_setup_and_teardown(tmp_path):
    (tmp_path / "test_it.py").write_text(REPORTED)
    code = (
        "import pytest; from tests.assurance.emulated_cuda.pytest_plugin import Outcomes; "
        "pytest.main(['--noconftest', '-p', 'no:cacheprovider', '-p', 'no:simgpu', 'test_it.py'], "
        "plugins=[Outcomes('outcomes')])"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=tmp_path, env=Hardware(1, "h100", 1).environment(), check=True)
    outcomes = suite._outcomes(tmp_path / "outcomes")
    assert {test.partition("::test_")[2]: outcome for test, (outcome, _) in outcomes.items()} == {
        "passes": "passed",
        "setup": "failed",
        "teardown": "failed",
        "skipped": "skipped",
    }
