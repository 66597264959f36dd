"""Write stubs of the functions of NVIDIA's libraries that torch imports and `native/` lacks.

`nm` says what the libraries of the installed torch import; the headers in its packages say which
parameters there are. A stub is counted like a kernel, writes 0 or a handle where a parameter looks
like a result, and returns 0.
"""

import re
import subprocess
from pathlib import Path

LIBRARIES = re.compile(
    r"(__cuda|cuda|cublas|cudnn|cusparse|cusolver|cufft|curand|nccl|nvJitLink|nvshmem|cuFile|cu[A-Z])"
)
# These work without a GPU: profilers' marks, and the compiler that PyTorch opens itself.
KEPT = re.compile(r"(cupti|nvtx|nvrtc)")
HEADERS = re.compile(
    r"(cuda\.h$|cublas|cudnn|cusparse|cusolver|cufft|curand|nvrtc|nccl|nvJitLink|cufile)"
)

# Functions whose result has to be another number than 0: parameters, and a statement of C++.
ANSWERS = {
    "cublasLtMatmulAlgoGetHeuristic": (10, "*(int*)a9 = 1;"),
    "cudnnGetVersion": (0, "return 92400;"),
    "cudnnGetProperty": (2, "*(int*)a1 = a0 == 0 ? 9 : a0 == 1 ? 24 : 0;"),
    "cudnnGetCudartVersion": (0, "return 13000;"),
    "cusparseLtGetVersion": (2, "*(int*)a1 = 800;"),
    "cublasGetVersion_v2": (2, "*(int*)a1 = 130000;"),
}
FOUR_BYTES = {"int", "unsigned", "unsigned int", "int32_t", "uint32_t", "cusolver_int_t"}
EIGHT_BYTES = {"size_t", "int64_t", "uint64_t", "long long", "long long int"}


def symbols(library, which):
    """The names that a shared library imports ("--undefined-only") or has ("--defined-only")."""
    command = ["nm", "-D", which, str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in text.splitlines() if line.strip()}


def declarations(site):
    """Name -> (parameters, text before the name) of the functions that the headers declare."""
    folders = [site / "nvidia", site / "triton" / "backends" / "nvidia" / "include"]
    paths = [path for folder in folders for path in sorted(folder.glob("**/*.h"))]
    text = "\n".join(p.read_text(errors="replace") for p in paths if HEADERS.match(p.name))
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    found = {}
    for match in re.finditer(r"\b(\w+)\s*\(([^(){};]*)\)\s*;", text):
        inside = " ".join(match.group(2).split())
        parameters = [] if inside in ("", "void") else [p.strip() for p in inside.split(",")]
        before = text[max(0, match.start() - 60) : match.start()]
        found.setdefault(match.group(1), (parameters, re.split(r"[;{}]", before)[-1]))
    return found


def _writes(name, parameter, argument):
    """The statement that gives a parameter of a stub its value, or nothing."""
    pointers = parameter.count("*") + parameter.count("[")
    base = re.split(r"[*\[]", parameter)[0]
    if pointers != 1 or "const" in base:
        return ""
    base = re.sub(r"\b(struct|enum)\b", "", base).strip()
    base = base.rsplit(" ", 1)[0] if base not in FOUR_BYTES | EIGHT_BYTES and " " in base else base
    width = 4 if base in FOUR_BYTES else 8 if base in EIGHT_BYTES else 0
    if width:
        return f"  if ({argument}) memset((void*){argument}, 0, {width});\n"
    makes = re.search(r"Create|Init|Alloc", name)
    if makes and re.search(r"(_t|Handle|Program|Descr\w*)$", base):
        return f"  if ({argument}) *(void**){argument} = calloc(1, 4096);\n"
    return ""


def stub(name, declared):
    """The text of one stub."""
    parameters, before = declared.get(name, ([], ""))
    count, body = 0, f'  emulated_library_call("{name}");\n'
    if name in ANSWERS:
        count, statement = ANSWERS[name]
        body += f"  {statement}\n"
    else:
        for parameter in parameters:
            plain = re.sub(r"\b(const|struct|enum)\b", "", parameter).strip()
            pointer = "*" in parameter or "[" in parameter
            if not pointer and re.match(r"(float|double)\b", plain):
                continue  # passed in a register of another kind
            body += _writes(name, parameter, f"a{count}")
            count += 1
    text = "char" in before and "*" in before
    result = '(long)"no text: emulated"' if text else "0"
    arguments = ", ".join(f"long a{i}" for i in range(count))
    return f"API long {name}({arguments}) {{\n{body}  return {result};\n}}\n"


def driver_functions(site):
    """The driver's functions: Triton and others look them up by name while they run."""
    found = set()
    for path in (site / "nvidia").glob("*/include/cuda.h"):
        text = path.read_text(errors="replace")
        found |= set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(", text))
        found |= set(re.findall(r"#\s*define\s+cu[A-Z]\w+\s+(cu[A-Z]\w+_v\d)", text))
    return found


def write(site: Path, handwritten: Path, out: Path):
    """Write the stubs into `out`; return how many functions are imported, handwritten, stubs, and
    stubs without a declaration.
    """
    imported = driver_functions(site)
    for library in sorted((site / "torch" / "lib").glob("*.so*")):
        names = symbols(library, "--undefined-only")
        imported |= {name for name in names if LIBRARIES.match(name) and not KEPT.match(name)}
    missing = sorted(imported - symbols(handwritten, "--defined-only"))
    declared = declarations(site)
    head = (
        "// Written by stubs.py.\n#include <cstdlib>\n#include <cstring>\n"
        '#define API extern "C" __attribute__((visibility("default")))\n'
        'extern "C" void emulated_library_call(const char*);\n'
    )
    out.write_text(head + "".join(stub(name, declared) for name in missing))
    undeclared = [name for name in missing if name not in declared]
    return len(imported), len(imported) - len(missing), len(missing), len(undeclared)
