"""docs/models.md: the table of all models of GPUs.

`python -m tests.project.model_table` writes it anew, between its two comments.
"""

from pathlib import Path

from simgpu._config.gpus import GENERIC, models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"

HEAD = (
    "model",
    "`get_device_name`",
    "capability",
    "SMs",
    "threads per SM",
    "memory, bytes",
    "L2, MiB",
    "memory, GB/s",
    "fp32 / tf32 / fp16, TFLOPS",
    "NVLink, GB/s",
    "PCIe, GB/s",
)


def _number(value, unit):
    return "?" if value is None else f"{value / unit:g}"


def cells(model):
    """The row of one model; "?" is what was not found, "none" what the GPU does not have."""
    major, minor = model.compute_capability
    rates = [_number(model.peak_flops.get(kind), 1e12) for kind in ("fp32", "tf32", "fp16")]
    if model.compute_capability < (8, 0):
        rates[1] = "none"
    return (
        model.key,
        model.name,
        f"{major}.{minor}",
        str(model.multi_processor_count),
        str(model.max_threads_per_multi_processor),
        str(model.total_memory),
        _number(model.L2_cache_size, 2**20),
        _number(model.memory_bandwidth, 1e9),
        " / ".join(rates),
        _number(model.nvlink_bandwidth, 1e9),
        _number(model.pcie_bandwidth, 1e9),
    )


def table():
    """The lines of the table."""
    rows = [HEAD, ["---"] * len(HEAD), *map(cells, (*models().values(), GENERIC))]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(text, table=table):
    """The page with the table as it has to be."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
