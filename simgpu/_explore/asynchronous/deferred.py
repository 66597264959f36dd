"""`DeferredLaunch`: one queued launch: what it returns now, and what it does later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from simgpu._core.hooks import Compute, Launch, hooks
from simgpu._core.launch import HOST_KEYS, is_host_number, is_non_blocking
from simgpu._core.lost_devices import lost, mark_lost_by_error
from simgpu._core.operators import clone, copy_, empty_strided
from simgpu._explore.asynchronous.memory import Block, Memory
from simgpu._explore.asynchronous.plans import Forms, Layout, Plan, TensorSignature, Unplanned
from simgpu._explore.asynchronous.queues import Queues, current_state
from simgpu._memory.pinned import is_pinned
from simgpu._util.naming import MAX_DEVICES

Tensor = torch.Tensor
_Arguments = tuple[Sequence[Any], Mapping[str, Any]]
_NO_KWARGS: Mapping[str, Any] = {}
_ALONE = tuple((index,) for index in range(MAX_DEVICES))


class ArgumentHolder:
    """Makes the arguments that queued work holds: memory, and no tensor of the program.

    `blocks` are the blocks that it has met.
    """

    def __init__(self, memory: Memory, plan: Plan, from_host: bool) -> None:
        self._memory = memory
        self._from_host = from_host
        self._changes = plan.changes
        self.blocks: list[Block] = []

    def hold_all(self, args: Sequence[Any], kwargs: Mapping[str, Any], forms: Forms) -> _Arguments:
        """The arguments of the call; raises Unplanned where they cannot be held."""
        changes = self._changes
        written: list[Block] = []
        held = []
        for at, value in enumerate(args):
            if isinstance(value, Tensor):
                value = self._hold_tensor(value, forms[0][at], written if at in changes else None)
            elif isinstance(value, (list, tuple)):
                value = self._hold(value, forms[0][at], at in changes, written)
            held.append(value)
        named = (
            {
                name: self._hold(value, form, name in changes, written)
                for (name, value), form in zip(kwargs.items(), forms[1], strict=True)
            }
            if kwargs
            else _NO_KWARGS
        )
        if written:
            self._check_overlap(written)
        return held, named

    def _hold(self, value: Any, form: Any, changes: bool, written: list[Block]) -> Any:
        if isinstance(value, Tensor):
            return self._hold_tensor(value, form, written if changes else None)
        if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
            return [
                self._hold_tensor(item, part, [] if changes else None)
                if isinstance(item, Tensor)
                else item
                for item, part in zip(value, form, strict=True)
            ]
        return value

    def _hold_tensor(
        self, tensor: Tensor, form: TensorSignature, written: list[Block] | None
    ) -> Tensor:
        address = tensor.data_ptr()
        if not address:  # of a tensor without elements
            return empty_strided(
                HOST_KEYS, tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
        block = self._memory.find(address)
        if block is None:
            return self._hold_host(tensor, written is not None)
        self.blocks.append(block)
        if written is not None:
            written.append(block)
        held = self._memory.held(tensor, address, form, block)
        if held is None:
            raise Unplanned("a view of other bytes")
        return held

    def _hold_host(self, tensor: Tensor, is_written: bool) -> Tensor:
        """A tensor of the host: pinned memory, what was staged, or a number, read now."""
        if self._from_host:
            return tensor
        if is_written or not is_host_number(tensor):
            raise Unplanned("memory that no device has allocated")
        return clone(HOST_KEYS, tensor)

    def _check_overlap(self, written: list[Block]) -> None:
        """Kernels refuse some arguments that overlap: they shall do so at once."""
        if any(self.blocks.count(block) > 1 for block in written):
            raise Unplanned("arguments that share memory")


class DeferredLaunch:
    """A launch that runs later; `blocks` are the memory that it uses."""

    __slots__ = (
        *("_compute", "_launch", "_outs", "_queues"),
        *("blocks", "ends", "has_run", "plan", "state"),
    )

    def __init__(
        self,
        launch: Launch,
        compute: Compute,
        plan: Plan,
        arguments: _Arguments,
        blocks: list[Block],
        queues: Queues,
    ) -> None:
        self._compute, self._queues = compute, queues
        self.plan, self.blocks, self.ends = plan, blocks, ends_of(launch)
        # With other arguments: those of the launch itself keep tensors of the program alive.
        self._launch = Launch(
            *(launch.kind, launch.op, launch.device, launch.stream, launch.source, launch.target),
            *arguments,
            *(launch.kernel, launch.about),
        )
        # The views that are written to: of the one result that is new, or for each result.
        self._outs: Tensor | list[Tensor | list[Tensor] | None] = []
        self.state = current_state()
        self.has_run = False

    def results(self, launch: Launch, memory: Memory) -> Any:
        """What it returns now: the arguments that it writes to, and new tensors without values.

        Only their memory is kept, so that they die with the program's tensors.
        """
        plan = self.plan.results
        if len(plan) == 1 and isinstance(plan[0], Layout):
            new = plan[0].make()
            self._outs = memory.expect(new, plan[0].form)
            return new
        made: list[Any] = []
        outs: list[Tensor | list[Tensor] | None] = []
        for result in plan:
            out: Tensor | list[Tensor] | None = None
            if isinstance(result, Layout):
                tensor = result.make()
                made.append(tensor)
                out = memory.expect(tensor, result.form)
            elif isinstance(result, list):
                tensors = [layout.make() for layout in result]
                made.append(tensors)
                out = [
                    memory.expect(tensor, layout.form)
                    for tensor, layout in zip(tensors, result, strict=True)
                ]
            elif result is None:
                made.append(None)
            else:
                values: Any = launch.args if isinstance(result, int) else launch.kwargs
                made.append(values[result])
            outs.append(out)
        self._outs = outs
        return made[0] if len(made) == 1 else tuple(made) if made else None

    def __call__(self) -> None:
        """Run in its turn."""
        self.state.call(self.in_state)

    def in_state(self) -> None:
        """Run in the state of the launch, which is in force, unless a device is lost.

        An error loses one, and is raised later.
        """
        try:
            if not lost.is_any(self.ends):
                self._run()
                self.has_run = True
        except Exception as error:
            launch = self._launch
            index, name = launch.device.index, launch.kernel.name
            mark_lost_by_error(error.with_traceback(None), index, launch.stream, name)
            self._queues.drop(index)

    def _run(self) -> None:
        """Compute, and write what comes of it to the results."""
        launch = self._launch
        args, kwargs = launch.args, launch.kwargs
        if self.plan.check is not None:
            self.plan.check(args, kwargs)
        if hooks.computed:
            found = self._compute(launch, args, kwargs)
        else:
            found = launch.kernel.run(HOST_KEYS, *args, **kwargs)
        outs = self._outs
        if isinstance(outs, Tensor):
            copy_(HOST_KEYS, outs, found)
            return
        values = found if len(outs) > 1 else (found,)
        for out, value in zip(outs, values, strict=False):
            if isinstance(out, list):
                for each, new in zip(out, value, strict=True):
                    copy_(HOST_KEYS, each, new)
            elif out is not None and out.numel():
                copy_(HOST_KEYS, out, value)


def ends_of(launch: Launch) -> tuple[int, ...]:
    """The devices that a launch takes part in."""
    if launch.kind != "copy":
        return _ALONE[launch.device.index]
    return tuple(end.index for end in (launch.source, launch.target) if end.type != "cpu")


# Which copies between host and device block, and when they read the memory of the host.
#
# PyTorch copies by cudaMemcpyAsync and then waits for the stream, unless the copy does not block
# (aten/src/ATen/native/cuda/Copy.cu). What CUDA does of the rest (CUDA Runtime API, "API
# synchronization behavior"): pageable memory is staged, so it has been read when a copy to the
# device returns, and a copy to it has ended when it returns. Pinned memory is read and written when
# the copy runs. A copy that changes dtype or layout goes through pageable memory of the host.


def is_blocking(launch: Launch) -> bool:
    """Whether the host waits for a copy from or to it."""
    if "cpu" not in (launch.source.type, launch.target.type):
        return False
    if not is_non_blocking(launch):
        return True
    if launch.target.type != "cpu":
        return False
    if launch.op != "copy_":
        return False  # into new memory, which is pinned
    target: Tensor = launch.args[0]
    return not (is_pinned(target) and target.is_contiguous())


def staged_copy(launch: Launch) -> tuple[Any, ...] | None:
    """The arguments of a copy from the host that has read them by now; None of one that has not."""
    position = 1 if launch.op == "copy_" else 0
    source: Tensor = launch.args[position]
    dtype = launch.args[0].dtype if position else launch.kwargs.get("dtype") or source.dtype
    plain = source.is_contiguous() and dtype is source.dtype
    if plain and (not position or launch.args[0].shape == source.shape) and is_pinned(source):
        return None
    args = list(launch.args)
    args[position] = source.clone()
    return tuple(args)
