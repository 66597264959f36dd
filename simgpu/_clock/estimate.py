"""`simgpu.clock`: a block in which time is that of real GPUs, by estimate."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from simgpu._clock.machine import Machine
from simgpu._clock.summary import Step, Summary, critical_path, shares_of
from simgpu._clock.timelines import Timelines
from simgpu._clock.topology import check_amount, topology_of
from simgpu._config.gpus import GENERIC, Model, Names, models, models_of
from simgpu._core import clock as runtime_clock
from simgpu._core import hooks, world
from simgpu.errors import NoDevicesError

HOST_COST = 5e-6  # seconds of the host for one launch
LAUNCH_GAP = 2e-6  # seconds between two kernels of a stream

_one_at_a_time = threading.Lock()


class Estimate:
    """The estimated time of a program so far; made by `clock`.

    All times are seconds since the beginning of the block.
    """

    def __init__(self, machine: Machine, about: str) -> None:
        self._machine, self._about = machine, about
        self._steps: dict[int | None, list[float]] = {}

    @property
    def now(self) -> float:
        """The time of the calling thread, which may be ahead of the devices or behind them."""
        return self._machine.now()

    @property
    def end(self) -> float:
        """When all work so far is done, on all devices and on the host."""
        return self._machine.end

    @property
    def timelines(self) -> Timelines:
        """For each (device, stream) the kernels and copies that it ran, with begin and end."""
        return self._machine.timelines

    @property
    def steps(self) -> list[float]:
        """How long each step took, from one `optimizer.step()` to the next (of rank 0)."""
        ends = self._steps.get(None) or self._steps.get(0) or []
        return [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]

    def critical_path(self) -> list[Step]:
        """The chain of kernels, copies and launches that decides when the end comes."""
        machine = self._machine
        end = machine.end
        return critical_path(machine.timelines, machine.hosts.last(), end)

    def summary(self) -> Summary:
        """Where the time goes, per device and along the critical path."""
        end = self.end
        shares = shares_of(self.timelines, len(self._machine.durations), end)
        return Summary(end, shares, self.critical_path(), self.steps, self._about)

    def __str__(self) -> str:
        return str(self.summary())

    def _stepped(self, *_: Any) -> None:
        """An optimizer has stepped: a step ends when its work does."""
        ends = self._steps.setdefault(world.rank_number(), [])
        machine = self._machine
        ends.append(
            machine.end if world.rank_number() is None else machine.end_on(world.current_device())
        )


@contextmanager
def clock(
    model: Names | Model = None,
    topology: str | Iterable[Any] = "pcie",
    *,
    host_cost: float = HOST_COST,
    launch_gap: float = LAUNCH_GAP,
) -> Iterator[Estimate]:
    """Use the time of real GPUs within the block: an estimate, and the same in every run.

    Programs compute what they always compute. But a kernel takes the longer of its FLOPs at three
    quarters of the peak rate of its dtype and its bytes at the bandwidth of memory, and a gap;
    copies take links, and queue there; streams, events and the host wait for each other in
    simulated time, which events, `simgpu.trace()` and the devices' streams show.

    Args:
        model: which GPU each device is, such as "A100"; a list gives one per device. Those of
            `simgpu.devices(model=...)` where none is named.
        topology: "pcie", "nvlink", "dgx-a100", two machines of eight as "2x8"; or a list of
            `simgpu.Link` or tuples (end, end, bandwidth, latency), whose ends are devices, "host"
            and names of switches.
        host_cost: seconds of the host for each launch.
        launch_gap: seconds between two kernels of a stream.

    Yields an `Estimate`. Raises NoDevicesError outside `simgpu.devices`; ValueError for a model or
    a topology that is not known or does not fit the devices, and where a clock is in force already;
    TypeError for what is none of these.
    """
    if not world.device_count():
        raise NoDevicesError("simgpu.clock needs simulated devices: enter simgpu.devices before it")
    check_amount("host_cost", host_cost, "seconds")
    check_amount("launch_gap", launch_gap, "seconds")
    chosen = _models(model)
    joined = topology_of(topology, chosen)
    machine = Machine(chosen, joined, host_cost, launch_gap)
    counted = Counter(each.key for each in chosen)
    names = ", ".join(f"{count} x {key}" for key, count in counted.items())
    estimate = Estimate(machine, f"{names}, {joined.name}")
    if not _one_at_a_time.acquire(blocking=False):
        raise ValueError("a simgpu.clock is in force already: leave its block first")
    with ExitStack() as ends:
        ends.callback(_one_at_a_time.release)
        for device in world.active_devices:  # by another clock
            device.busy_until.clear()
            ends.callback(device.busy_until.clear)
        ends.enter_context(runtime_clock.use(machine))
        hooks.add(machine)
        ends.callback(hooks.remove, machine)
        hook = register_optimizer_step_post_hook(estimate._stepped)
        ends.callback(hook.remove)
        yield estimate


def _models(names: Names | Model) -> list[Model]:
    count = world.device_count()
    if isinstance(names, Model):  # one that the list of models does not have
        return [names] * count
    if names is not None:
        return models_of(count, names)
    own = [device.model for device in world.active_devices]
    if GENERIC in own:
        raise ValueError(
            "simgpu.clock needs to know which GPU the devices are: name one of "
            f"{', '.join(models())} to it or to simgpu.devices(model=...)"
        )
    return own
