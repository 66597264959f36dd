"""Sixty operators of PyTorch's database, spread evenly over it, have the CPU's answers on a device.

tests/full/sweep has all of them, all dtypes and all samples, gradients and `out=`.
"""

import pytest
import torch

import simgpu
from simgpu._core import device_generator

OPERATORS, SAMPLES = 60, 5


@pytest.mark.filterwarnings("ignore")  # the samples call deprecated operators on purpose
def test_operators_have_the_results_of_the_cpu(monkeypatch):
    # Imported here, since the database takes a second.
    from tests.support.sweep import entries, known
    from tests.support.sweep.calls import compare_forward

    names = [
        name
        for name, entry in entries.ENTRIES.items()
        if torch.float32 in entries.dtypes_of(entry)
        and known.lookup("difference", f"forward {name} float32") is None
    ]
    chosen = [names[k * len(names) // OPERATORS] for k in range(OPERATORS)]
    assert len(set(chosen)) == OPERATORS
    monkeypatch.setattr(
        device_generator, "_GOLDEN", 0
    )  # the streams of the device are those of the CPU
    with simgpu.devices(2, rng="host") as devices:
        for name in chosen:
            compare_forward(devices[1], name, "float32", most=SAMPLES)
