"""The pool of simulated devices: made anew for each test, or the first of those that are there.

They are there already under --as-cuda and SIMGPU_DEVICE_COUNT, under `session_devices` and
`module_devices`, and where a suite's own fixture is within `with simgpu.devices(n)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from simgpu._counting import plural
from simgpu._models.gpus import models_of
from simgpu._pytest.pools import SCOPES, Scope, fixture_name
from simgpu._runtime.rngs import RNGS

if TYPE_CHECKING:
    import torch


class SimulatedPool:
    """Up to `count` simulated GPUs for a test.

    Args:
        memory, model, rng: of each, as `simgpu.devices` takes it; None for its default.
        source: what made them for the whole process, for the header: "as cuda".
        order: in which order their kernels run, for the header, where that is not at once.
    """

    distinct = True

    def __init__(
        self,
        count: int,
        memory: str | list[str] | None = None,
        model: str | list[str] | None = None,
        source: str | None = None,
        rng: str | None = None,
        order: str | None = None,
    ) -> None:
        self.count, self.memory, self.model, self.source = count, memory, model, source
        self.rng = rng or RNGS[0]
        self.order = order
        self._scopes: list[Scope] = []  # of the fixtures that hold devices now

    def describe(self) -> str:
        words = f"{plural(self.count, 'simulated GPU')}"
        if self.memory:
            words += f" of {_all_of(self.memory)}"
        if self.model:
            models = dict.fromkeys(model.name for model in models_of(self.count, self.model))
            words += f", model {', '.join(models)}"
        if self.rng != RNGS[0]:
            words += f", rng {self.rng}"
        if self.order:
            words += f", asynchronous {self.order}"
        return f"{words} (simgpu{f', {self.source}' if self.source else ''})"

    def sort(self, count: int) -> dict[str, Any]:
        """Of which sort `count` of them are, as arguments of `simgpu.devices`."""
        memory, model = (
            told[:count] if isinstance(told, list) else told for told in (self.memory, self.model)
        )
        return {"memory": memory, "model": model, "rng": self.rng}

    @contextlib.contextmanager
    def lend(self, count: int, scope: Scope = "function") -> Iterator[list[torch.device]]:
        import torch  # noqa: F401  # which makes the devices of SIMGPU_DEVICE_COUNT

        from simgpu._runtime import world

        self._check_scope(scope)
        active = world.device_count()
        lent = self._make(count, scope) if not active else _share(count, active)
        with lent as devices:
            self._scopes.append(scope)
            try:
                yield devices
            finally:
                self._scopes.remove(scope)

    def _check_scope(self, scope: Scope) -> None:
        if self._scopes and SCOPES.index(scope) < SCOPES.index(self._scopes[-1]):
            inner, outer = fixture_name(self._scopes[-1]), fixture_name(scope)
            pytest.fail(
                f"{outer} are asked for while {inner} are in use, which end before them: ask for "
                f"{outer} alone, or first",
                pytrace=False,
            )

    @contextlib.contextmanager
    def _make(self, count: int, scope: Scope) -> Iterator[list[torch.device]]:
        import torch

        import simgpu
        from simgpu._runtime import world

        with simgpu.devices(count, **self.sort(count)) as devices:
            made = world.current_world()
            assert made is not None
            made.hint = (
                f"pytest's fixture {fixture_name(scope)} made them: use its devices, or do without "
                "the fixture"
            )
            # The devices are seeded; torch.manual_seed would format the stack for every backend.
            torch.default_generator.manual_seed(0)
            yield list(devices)


def _all_of(told: str | list[str]) -> str:
    return told if isinstance(told, str) else ", ".join(told)


@contextlib.contextmanager
def _share(count: int, active: int) -> Iterator[list[torch.device]]:
    """Lend the first of the devices that are there, in a state as fresh as can be."""
    import torch

    from simgpu import _naming
    from simgpu._runtime import world

    if count > active:
        there = world.current_world()
        maker = there and there.maker
        if maker:
            pytest.fail(
                f"the test asks for {plural(count, 'device')}, and {active} are there already, "
                f"made by {maker}: say @pytest.mark.devices({active}), or as many ranks",
                pytrace=False,
            )
        pytest.fail(
            f"the test asks for {plural(count, 'device')}, and {active} are there already, made "
            "outside of it (by a fixture of yours, or by module_devices): say "
            f"--device-count {active} or @pytest.mark.devices({active}), or take the devices of "
            "the wider fixture from session_devices",
            pytrace=False,
        )
    kind = "cuda" if "cuda" in _naming.names else _naming.DEVICE_TYPE
    devices = [torch.device(kind, index) for index in range(count)]
    module = torch.get_device_module(devices[0])
    with world.narrowed(count):
        module.set_device(0)
        torch.manual_seed(0)
        for device in devices:
            module.reset_peak_memory_stats(device)
        yield devices
