"""Compile the emulated CUDA for the torch of this interpreter: about 30 s, once for each torch.

Needs g++, nm, and the CUDA headers that come with PyTorch's CUDA build (in the package
nvidia-cuda-runtime), or those of a toolkit in CUDA_HOME.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.assurance.emulated_cuda import stubs

HERE = Path(__file__).parent
NATIVE = HERE / "native"
LIBRARY, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
FLAGS = ["-std=c++17", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-Wno-unused-parameter"]


class BuildError(Exception):
    """The emulated CUDA cannot be built here; the text says what is missing."""


def site_packages():
    """The folder of the installed torch, without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("torch is not installed")
    return Path(spec.origin).parents[1]


def cuda_headers(site):
    """The folder with cuda_runtime_api.h."""
    folders = [
        *site.glob("nvidia/*/include"),
        Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include",
    ]
    for folder in folders:
        if (folder / "cuda_runtime_api.h").exists() and (folder / "cuda.h").exists():
            return folder
    raise BuildError(
        "no cuda_runtime_api.h beside torch or in CUDA_HOME: install PyTorch's CUDA build "
        "(pip install torch, without the index of the CPU builds) or a CUDA toolkit"
    )


def folder_for(site):
    """Where the build for this torch and these sources belongs."""
    digest = hashlib.sha256()
    for path in [*sorted(NATIVE.rglob("*.*")), HERE / "stubs.py"]:
        digest.update(path.read_bytes())
    version = (site / "torch" / "version.py").read_text()
    digest.update(version.encode() + str(site).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "simgpu-emulated-cuda" / digest.hexdigest()[:16]


def _run(command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def _compile(site, out):
    for tool in ("g++", "nm"):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} is not installed")
    if not list((site / "torch" / "lib").glob("libtorch_cuda.so")):
        raise BuildError(f"torch in {site} is a build without CUDA")
    include = cuda_headers(site)
    objects = []
    for source in sorted(NATIVE.glob("*.cpp")):
        if source.stem == "nvml":
            continue
        objects.append(out / f"{source.stem}.o")
        _run(["g++", *FLAGS, f"-I{include}", f"-I{NATIVE}", "-c", source, "-o", objects[-1]])
    _run(["g++", "-shared", *objects, "-o", out / "handwritten.so", "-ldl", "-lpthread"])
    counts = stubs.write(site, out / "handwritten.so", out / "stubs.cpp")
    # Long names of parameters that a stub ignores, and literals as long.
    _run(["g++", *FLAGS[:-2], "-w", "-c", out / "stubs.cpp", "-o", out / "stubs.o"])
    link = ["g++", "-shared", *objects, out / "stubs.o", "-ldl", "-lpthread"]
    _run([*link, f"-Wl,-soname,{LIBRARY}", "-o", out / LIBRARY])
    _run(["g++", *FLAGS, "-shared", f"-Wl,-soname,{NVML}", NATIVE / "nvml.cpp", "-o", out / NVML])
    return counts


def build(force=False, report=print):
    """Build for the installed torch unless that is done already; return the folder.

    Raises BuildError where a tool, a header or a CUDA build of torch is missing.
    """
    site = site_packages()
    folder = folder_for(site)
    if (folder / LIBRARY).exists() and not force:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        out = Path(scratch)
        imported, handwritten, stubbed, undeclared = _compile(site, out)
        report(
            f"{imported} functions imported by torch or looked up: {handwritten} written by hand, "
            f"{stubbed} stubs ({undeclared} without a declaration)"
        )
        for path in (out / "handwritten.so", *out.glob("*.o"), out / "stubs.cpp"):
            path.unlink()
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(out, folder)
    report(f"built {folder}")
    return folder
