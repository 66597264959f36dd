"""docs/fidelity.md: the reports of all recordings, each between its two comments.

`python -m tests.hardware.report` replays the published ones and writes all reports anew.
"""

from pathlib import Path

from tests.support.comparison import compare, files, table
from tests.support.cuda_code import recordings

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"


def page(text, reports):
    """The page with its reports, by the name in their comments, as they have to be."""
    for name, report in reports.items():
        begin, end = (f"<!-- {word} of the {name} -->\n" for word in ("begin", "end"))
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{report.strip()}\n\n{end}{rest.split(end)[1]}"
    return text


def of_cuda_code():
    """The reports of what PyTorch's CUDA code did: a test replays those recordings."""
    return {
        "recordings of GPUs": recordings.table(recordings.OF_GPUS),
        "recordings of the emulated CUDA": recordings.table(recordings.FOLDER),
    }


if __name__ == "__main__":
    reports = {"report": table(map(compare, files())), **of_cuda_code()}
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), reports), encoding="utf-8")
