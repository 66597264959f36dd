"""SIMGPU_DEVICE_COUNT, SIMGPU_AS_CUDA and others: simulated devices for the rest of the process."""

from __future__ import annotations

from simgpu._backend import install
from simgpu._models.gpus import models_of
from simgpu._runtime import world
from simgpu._runtime.capacities import process_capacities
from simgpu._startup import variables


def start_process_devices() -> None:
    """Make the devices that SIMGPU_DEVICE_COUNT asks for, for the rest of the process.

    Does nothing where they have been made already, as `import torch` does by itself wherever
    simgpu is installed. SIMGPU_DEVICE_MEMORY says what each has, as in `simgpu.devices`, with
    commas between the sizes of several, and SIMGPU_MODEL which GPU each is, likewise; SIMGPU_RNG
    says what draws their random numbers. With SIMGPU_AS_CUDA, they go by the name of CUDA.

    Raises ValueError where a variable makes no sense; its text begins with the variable.
    """
    count = variables.device_count()
    if count is None or world.device_count():
        return
    memory = variables.device_memory()
    with variables.told_by(variables.MEMORY):
        sizes = None if memory is None else process_capacities(count, memory)
    model = variables.device_model()
    with variables.told_by(variables.MODEL):
        models = None if model is None else models_of(count, model)
    rng = variables.device_rng()
    named = variables.as_cuda()
    install.install()
    entered = world.enter(count, sizes, models, rng)
    entered.hint = (
        f"{variables.COUNT} or `simgpu run` made them for the whole process: use these, or start "
        "it without"
    )
    entered.more = f"; {variables.COUNT}, or --devices of `simgpu run`, says how many"
    if named:
        from simgpu._cuda import as_cuda

        as_cuda.start_process(force=named == "force")
