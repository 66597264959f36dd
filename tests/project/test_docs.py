"""What the README shows is run: each fenced block works and prints what it says.

tests/full/docs runs the other pages; `tests/support/pages.py` has the rules for all. Not run is
only what says why, and how many those are is written down here. Of all pages, links lead somewhere,
docs/fidelity.md has the differences of known_differences.toml, and docs/troubleshooting.md texts
that the code has.
"""

import ast
import inspect
import re
import runpy
from collections import Counter
from pathlib import Path

import hypothesis.core
import pytest
import torch

import simgpu
from simgpu.__main__ import main
from simgpu._pytest.options import SessionOptions
from simgpu._pytest.pools import choose_pool, describe, group_size
from tests.assurance.faults.table import FAULTS
from tests.support import plant
from tests.support.chunk_rule import chunk_sizes
from tests.support.pages import PAGES, ROOT, PageError, blocks, commands, excuses, run_page
from tests.support.recording import FOLDER, described, load
from tests.support.sweep.known import TABLES

# Blocks, or commands of blocks, that no test runs, by the reason that the page gives.
NOT_RUN = {
    "it installs": 4,
    "it needs your script": 2,
    "it needs real GPUs": 5,
    "it takes minutes": 8,
    "CI runs it": 3,
    "GitHub runs it": 1,
}

SPAN = re.compile(r"`([^`\n]+)`")
# Commands of this repository that are neither pytest nor simgpu, and have options of their own.
OF_OTHERS = re.compile(r"torchrun|nvidia-smi|--error-for-skips|python (-m tests\.|benchmarks/)")
OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")
RUN_PYTEST, RUN_SIMGPU = ["python", "-m", "pytest"], ["python", "-m", "simgpu"]


def test_readme_works(reader):
    run_page(ROOT / "README.md", *reader)


def test_readme_fits_one_screen():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 90


def test_readme_has_the_figures_of_the_report():
    text = (ROOT / "docs" / "fidelity.md").read_text("utf-8")
    rows, of_cuda_code = (
        [line.strip("| ").split(" | ") for line in report.splitlines() if line[:2] == "| "][2:]
        for name in ("report", "recordings of the emulated CUDA")
        for report in [text.partition(f"<!-- begin of the {name} -->")[2].partition("<!-- end")[0]]
    )  # but for the head and the line below it
    cases, agreed = ({row[0]: int(row[at]) for row in rows} for at in (3, 5))
    others = ("all", "one_h200")
    published = [sum(n for name, n in of.items() if name not in others) for of in (agreed, cases)]
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert cases["one_h200"] == agreed["one_h200"]
    assert f"repeat all {cases['one_h200']} cases recorded there" in readme
    assert f"{published[0]} of {published[1]} that other GPUs printed" in readme
    *_, count, agree, _ = of_cuda_code[-1]
    assert f"and {agree} of {count} of PyTorch's own CUDA code" in readme


def test_tests_not_run_are_counted():
    """One more block that is not run is one more to write down, in the row of its reason."""
    assert dict(Counter(excuse for path in PAGES for excuse in excuses(blocks(path)))) == NOT_RUN


def test_options_that_pages_name_exist(request, capsys):
    """Those in running text and in commands that are not run; others would have failed."""
    named = set()
    for path in PAGES:
        spans = SPAN.findall(path.read_text("utf-8"))
        named.update(OPTION.findall(" ".join(s for s in spans if not OF_OTHERS.search(s))))
        for block in blocks(path):
            for words in commands(block) if block.language == "bash" else ():
                if words[0] == "pytest" or words[:3] in (RUN_PYTEST, RUN_SIMGPU):
                    # What follows a further -m is for the module.
                    end = words.index("-m", 3) if "-m" in words[3:] else None
                    named.update(OPTION.findall(" ".join(words[:end])))
    for command in ("run", "fuzz", "replay"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
    of_simgpu = set(OPTION.findall(capsys.readouterr().out))
    assert {"--devices", "--as-cuda", "--summary"} <= named
    assert [name for name in named - of_simgpu if not _is_option(request.config, name)] == []


def _is_option(config, name):
    try:
        config.getoption(name)
    except ValueError:
        return False
    return True


def test_gpus_page_shows_the_line_of_a_recording():
    path = FOLDER / "pytorch_tutorial.json"
    recording = load(path)
    cases = len(recording["cases"])
    line = (
        f"{path.name}: {cases} cases compared, {cases} agreed, 0 known differences; "
        f"from {described(recording['origin'])}"
    )
    assert f"\n{line}\n" in (ROOT / "docs" / "gpus.md").read_text("utf-8")


def test_the_planted_fault_shown_is_in_the_table():
    (block,) = (one for one in blocks(ROOT / "CONTRIBUTING.md") if one.language == "python")
    shown = eval(block.text, vars(plant))
    (row,) = (fault for fault in FAULTS if fault.name == shown.name)
    assert (row.caught_by, row.edit.where) == (shown.caught_by, shown.edit.where)
    sound, edited = shown.edit.trees()
    assert ast.dump(sound) != ast.dump(edited)


def test_each_named_check_exists():
    tests = "".join(file.read_text("utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    found = [block for path in PAGES for block in blocks(path) if "checked by" in block.notes]
    assert len(found) == 4
    for block in found:
        assert f"\ndef {block.notes['checked by']}(" in tests, block.where


def test_gpus_page_shows_the_lines_of_the_plugin(gpus):
    text = (ROOT / "docs" / "gpus.md").read_text("utf-8")
    possible = set()
    for here in (4, 8):
        gpus(here)
        options = SessionOptions("cuda")
        line = choose_pool(options).describe()
        groups = describe(4, here, group_size(options, here))
        slots = choose_pool(SessionOptions("cuda", oversubscribe=True)).describe()
        possible |= {line, f"{line}; {groups}", slots}
    shown = re.findall(r"^devices: (.*)$", text, re.MULTILINE)
    assert len(shown) == 4
    assert set(shown) <= possible
    gpus(0)
    with pytest.raises(pytest.UsageError) as refused:
        choose_pool(SessionOptions("cuda"))
    assert f"\nERROR: {refused.value}\n" in text


GOOD = """
```python
print(6 * 7)
```

```text
42
```

<!-- file: it.py -->
```python
import sys
print("here")
sys.exit(3)
```

<!-- exits with: 3 -->
```bash
python it.py   # as a reader would
```

```text
he...
```

<!-- not run: for the test -->
```bash
rm -rf nothing
```
"""


def test_a_good_page_passes(reader, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(GOOD)
    assert run_page(page, *reader) == 2
    assert excuses(blocks(page)) == ["for the test"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("print(6 * 7)", "print(6 / 0)", "ZeroDivisionError"),
        ("print(6 * 7)", "print(6 + 7)", "prints\n13"),
        ("```text\n42", "42\n\n```text\n42", "has to follow"),
        ("with: 3", "with: 4", "ended with 3"),
        ("he...", "there", "prints\nhere"),
        ("python it.py", "python other.py", "no command after it uses it.py"),
        ("<!-- not run: for the test -->\n", "", "rm is neither python nor pytest"),
        ("<!-- not run: for", "<!-- note: for", "are unknown"),
        ("```bash\nrm", "```yaml\nrm", "is neither run"),
    ],
)
def test_a_broken_page_fails(reader, tmp_path, old, new, says):
    assert old in GOOD
    text = GOOD.replace(old, new)
    if "yaml" in new:
        text = text.replace("<!-- not run: for the test -->\n", "")
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(PageError, match=says):
        run_page(page, *reader)


# Links, to files and to headings.

LINKED = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "tests" / "README.md"]

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    names: Counter[str] = Counter()
    for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\]\([^)]*\)", "", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names[name] += 1
    return {f"{name}-{n}" if n else name for name, count in names.items() for n in range(count)}


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page whose file or heading is not there."""
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_broken_links(page):
    assert broken_links(page) == []


def test_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# What *is* `here`?\n")
    page.write_text(
        "# One thing\n[a](other.md) [b](other.md#what-is-here) [c](#one-thing) [d](https://x.y/z)\n"
        "[e](gone.md) [f](other.md#gone) [g](#two) ![h](gone.png)\n```text\n[i](gone)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "other.md#gone", "#two", "gone.png"]


# Known differences from CUDA.

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "fidelity.md"
ENTRIES = [entry for kind in TABLES.values() for entry in kind]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_page_has_the_reason(entry):
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"**{entry['name']}.** {entry['reason']}" in text


@pytest.mark.parametrize("entry", TABLES["behaviour"], ids=lambda entry: entry["name"])
def test_named_test_exists(entry):
    file, _, name = entry["test"].partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    assert f"\ndef {name}(" in text or f"\n{name} = " in text


def test_page_has_no_other_differences():
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("\n- **") == len(ENTRIES)


# Texts of errors.

TEXTS = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text("utf-8"), re.M)
TEXTS_OF_OTHERS = {
    "Torch not compiled with CUDA enabled": torch.cuda,
    "The shape of the test data has changed in some way ...": hypothesis.core,
}


def _pieces(node):
    """The texts in an expression, one after the other; None for what is known at run time only."""
    if isinstance(node, ast.Constant):
        return [node.value if isinstance(node.value, str) else None]
    parts = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
    known = (ast.Constant, ast.JoinedStr, ast.BinOp)
    return [p for part in parts for p in (_pieces(part) if isinstance(part, known) else [None])]


def _texts_of_code():
    for package in ("simgpu", "dataparallel"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                    yield "".join("\0" if piece is None else piece for piece in _pieces(node))


@pytest.fixture(scope="module")
def texts_of_code():
    return set(_texts_of_code())


def _occurs(shown, texts):
    """Whether a text has the pieces between `...`, each of them without what varies in it."""
    pieces = [piece for piece in re.split(r"\s*\.\.\.\s*", shown) if piece.strip(" :;,")]
    pattern = re.compile("(?s)" + ".*".join(map(re.escape, pieces)))
    return any(pattern.search(text) for text in texts)


@pytest.mark.parametrize("shown", TEXTS)
def test_text_is_in_the_code(shown, texts_of_code):
    other = TEXTS_OF_OTHERS.get(shown)
    assert _occurs(shown, texts_of_code if other is None else {inspect.getsource(other)})


def test_other_texts_are_not_in_the_code(texts_of_code):
    assert len(TEXTS) == len(set(TEXTS)) >= 25
    other = "simgpu.schedule() is already active; schedules can be nested"
    assert not _occurs(other, texts_of_code)
    assert not _occurs("memory=... must be ... a unit of its own", texts_of_code)


EXAMPLES = Path(__file__).parents[2] / "examples"
INSIDE = re.compile(r"\tIn Model: input size torch\.Size\(\[(\d+), 5\]\) output size (.*)")
OUTSIDE = re.compile(r"Outside: input size torch\.Size\(\[(\d+), 5\]\) output_size (.*)")
LOSS = re.compile(r"loss (\d+\.\d+)")


def check_tutorial(lines, count):
    """Every line is whole, and every batch has the sizes that `count` GPUs see."""
    if count > 1:
        assert lines.pop(0) == f"Let's use {count} GPUs!"
    start = next(k for k, line in enumerate(lines) if line.startswith("Training"))
    batches, inside = [], []
    for line in lines[:start]:
        seen, whole = INSIDE.fullmatch(line), OUTSIDE.fullmatch(line)
        assert seen or whole, line
        rows, size = (seen or whole).groups()
        assert size == f"torch.Size([{rows}, 2])"
        if seen:
            inside.append(int(rows))
        else:
            batches.append((int(rows), Counter(inside)))
            inside = []
    assert batches == [(rows, Counter(chunk_sizes(rows, count))) for rows in (30, 30, 30, 10)]
    losses = [float(LOSS.search(line).group(1)) for line in lines[start + 1 :]]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_tutorial_in_this_process(count, capfd):
    with simgpu.devices(count):
        runpy.run_path(str(EXAMPLES / "data_parallel_tutorial.py"), run_name="__main__")
    check_tutorial(capfd.readouterr().out.splitlines(), count)


def test_tutorial_from_the_command_line(python):
    done = python("-m", "simgpu", "run", "--devices", 4, EXAMPLES / "data_parallel_tutorial.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    check_tutorial(done.stdout.splitlines(), 4)


def check_multi_gpu(lines, count):
    assert lines[0] == f"{count} GPUs"
    assert len(lines) == 5
    assert "10 -> 20" in lines[2]
    assert "embedding on cpu" in lines[4]
    for line in lines[1:]:
        before, after = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", line).groups())
        assert after < before


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_multi_gpu_in_this_process(count, capfd):
    with simgpu.devices(count):
        runpy.run_path(str(EXAMPLES / "multi_gpu.py"), run_name="__main__")
    lines = capfd.readouterr().out.splitlines()
    check_multi_gpu(lines, count)
    assert lines[4].startswith("embedding on cpu, layer on simgpu:0")


@pytest.mark.full
@pytest.mark.parametrize("name", ["data_parallel_tutorial.py", "multi_gpu.py"])
def test_on_a_machine_without_gpus(python, name):
    """Run as they are, without simulated devices and with real ones hidden: on the CPU."""
    done = python(EXAMPLES / name, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if name == "multi_gpu.py":
        check_multi_gpu(lines, 0)
    else:
        check_tutorial(lines, 1)
