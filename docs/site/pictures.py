"""docs/images: the pictures of the pages, made of what the commands on those pages print.

`python -m docs.site.pictures` writes all of them. The fuzz report needs Chromium, which takes
its picture; without one, that picture stays as it is. The timeline is drawn here from the file that
`--trace` writes: Perfetto, which shows such files, is a web page.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from tests.support.pages import ROOT, blocks

FOLDER = ROOT / "docs" / "images"
WIDTH = 104  # columns of a terminal
DARK, TEXT, ERROR, DIM, PROMPT = "#1e1e2e", "#cdd6f4", "#f38ba8", "#a6adc8", "#a6e3a1"
COLOURS = {"kernel": "#00897b", "copy": "#f9a825", "memory": "#8e24aa", "collective": "#3949ab"}
CLOCK = ("--clock", "A100", "--topology", "nvlink")


def _file_of(page, name):
    """The text of a file that a page shows."""
    (text,) = (b.text for b in blocks(ROOT / "docs" / page) if b.notes.get("file") == name)
    return text


def _output(page, name, *words):
    """What a command prints where only that file is: on both streams, without the folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(_file_of(page, name), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout.replace(f"{Path(folder).resolve()}/", "").replace(f"{folder}/", "")


def _wrapped(line):
    """The pieces of a line that fit the terminal, cut at blanks."""
    while len(line) > WIDTH:
        cut = line.rfind(" ", 0, WIDTH)
        cut = cut if cut > 20 else WIDTH
        yield line[:cut]
        line = f"    {line[cut:].lstrip()}"
    yield line


def terminal(command, lines):
    """A terminal with a command and its output, as SVG."""
    shown = [(PROMPT, f"$ {command}")]
    for line in lines:
        colour = ERROR if "Error:" in line or line.startswith("race:") else TEXT
        shown += [(colour, piece) for piece in _wrapped(line.rstrip())]
    height = 20 * len(shown) + 24
    rows = "".join(
        f'<text x="16" y="{30 + 20 * row}" fill="{colour}" xml:space="preserve">'
        f"{escape(text)}</text>\n"
        for row, (colour, text) in enumerate(shown)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * 8 + 32} {height}" '
        f'font-family="monospace" font-size="13">\n'
        f'<rect width="100%" height="100%" rx="8" fill="{DARK}"/>\n{rows}</svg>\n'
    )


def deadlock():
    """The error of ranks of which one has a batch more."""
    printed = _output("tutorial.md", "ranks.py", "ranks.py").splitlines()
    return terminal("python ranks.py", [line for line in printed if "MismatchError" in line])


def race():
    """The report of a read that does not wait for a copy."""
    words = ("-m", "pytest", "--as-cuda", "--device-count", "1", "--races", "test_prefetch.py")
    printed = _output("cookbook.md", "test_prefetch.py", *words).splitlines()
    (begin,) = (number for number, line in enumerate(printed) if line.startswith("race:"))
    return terminal(
        "pytest --as-cuda --device-count 1 --races test_prefetch.py", printed[begin : begin + 4]
    )


def speedup():
    """The table of 1 to 8 A100s."""
    words = ("run", "--devices", "2", *CLOCK, "--summary", "small.py")
    printed = _output("cookbook.md", "small.py", "-m", "simgpu", *words).splitlines()
    (begin,) = (number for number, line in enumerate(printed) if line.startswith("devices "))
    return terminal(f"simgpu {' '.join(words)}", printed[begin:])


def timeline():
    """The second step of a training loop on two A100s: a row per device, as Perfetto has it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timeline.json"
        words = ("run", "--devices", "2", *CLOCK, "--trace", str(file), "small.py")
        _output("cookbook.md", "small.py", "-m", "simgpu", *words)
        events = json.loads(file.read_text("utf-8"))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X" and e["dur"] >= 0.1]
    batches = [e["ts"] for e in spans if e["name"] == "normal_"]  # each step draws one
    begin, end = batches[1:3]
    shown = sorted(
        (e for e in spans if begin <= e["ts"] < end), key=lambda e: (e["pid"], e["ts"], e["name"])
    )
    # The host's row comes first, and here it is empty.
    busy = {e["pid"] for e in shown}
    names = {
        e["pid"]: e["args"]["name"]
        for e in events
        if e["name"] == "process_name" and e["pid"] in busy
    }
    tops = {pid: 20 + 46 * row for row, pid in enumerate(sorted(names))}
    below = 20 + 46 * len(names)
    scale = 780 / (end - begin)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {below + 54}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="100%" height="100%" rx="8" fill="{DARK}"/>\n'
    ]
    for pid, name in sorted(names.items()):
        top = tops[pid]
        parts.append(f'<text x="16" y="{top + 21}" fill="{TEXT}">{escape(name)}</text>\n')
        parts.append(f'<rect x="100" y="{top}" width="780" height="32" fill="#313244"/>\n')
    for e in shown:
        x, width = 100 + (e["ts"] - begin) * scale, max(e["dur"] * scale - 0.5, 0.5)
        parts.append(
            f'<rect x="{x:.1f}" y="{tops[e["pid"]]}" width="{width:.1f}" height="32" '
            f'fill="{COLOURS[e["cat"]]}"><title>{escape(e["name"])}</title></rect>\n'
        )
        if width > 8 * len(e["name"]):
            parts.append(
                f'<text x="{x + 4:.1f}" y="{tops[e["pid"]] + 21}" fill="{DARK}">'
                f"{escape(e['name'])}</text>\n"
            )
    for part in range(5):
        x, microseconds = 100 + 780 * part / 4, (end - begin) * part / 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        parts.append(
            f'<text x="{x:.0f}" y="{below + 18}" fill="{DIM}" text-anchor="{anchor}">'
            f"{microseconds:.0f} µs</text>\n"
        )
    for number, kind in enumerate(sorted({e["cat"] for e in shown})):
        x = 100 + 110 * number
        parts.append(
            f'<rect x="{x}" y="{below + 30}" width="12" height="12" fill="{COLOURS[kind]}"/>\n'
        )
        parts.append(f'<text x="{x + 18}" y="{below + 41}" fill="{TEXT}">{kind}</text>\n')
    return "".join([*parts, "</svg>\n"])


DRAWN = {
    "deadlock.svg": deadlock,
    "race.svg": race,
    "speedup.svg": speedup,
    "timeline.svg": timeline,
}


def fuzz_report(browser):
    """Write the picture of the report that the page about fuzzing makes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_loss.py").write_text(_file_of("fuzzing.md", "test_loss.py"))
        words = ("-m", "simgpu", "fuzz", "--examples", "300", "--jobs", "1", "test_loss.py")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *words], cwd=folder, env=environment, stdout=-3, stderr=-3)
        page = Path(folder) / "fuzz-report.html"
        subprocess.run(
            [
                browser,
                *("--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1180,1400"),
                f"--screenshot={FOLDER / 'fuzz_report.png'}",
                page.as_uri(),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )


if __name__ == "__main__":
    for name, draw in DRAWN.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
    if browser := shutil.which("chromium") or shutil.which("google-chrome"):
        fuzz_report(browser)
