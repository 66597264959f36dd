"""Every error that simgpu itself raises, under one root.

Each class also derives from the built-in (or torch) type that the same mistake raises on real
GPUs, so that code written for CUDA catches it without knowing about simgpu.

May import: `_util`, `torch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from simgpu._util.naming import visible_text

if TYPE_CHECKING:
    _BackendError = RuntimeError
else:  # what torch.distributed raises; builds without it lack the class
    _BackendError = getattr(torch._C, "_DistBackendError", RuntimeError)


class SimGPUError(Exception):
    """Root of all errors raised by simgpu.

    Under `simgpu.as_cuda` the text calls the devices cuda:0, cuda:1, ...
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*[visible_text(arg) if isinstance(arg, str) else arg for arg in args])


class InvalidDeviceError(SimGPUError, torch.AcceleratorError):
    """A device index names no simulated device.

    Likely causes: an ordinal past ``simgpu.devices(n)``, or a tensor kept from an earlier,
    larger set of devices.
    """


class NoDevicesError(SimGPUError, RuntimeError):
    """A simulated device was used while none exist.

    Likely cause: code ran outside ``with simgpu.devices(n)`` and without ``SIMGPU_DEVICE_COUNT``.
    """


class DevicesActiveError(SimGPUError, RuntimeError):
    """Simulated devices were asked for while another set of them is active."""


class DeviceBlockError(SimGPUError, RuntimeError):
    """What `simgpu.devices(n)` returned was entered twice, or `simgpu.disable` had nothing to end.

    The way out: call `simgpu.devices` once for each block, and `simgpu.enable` before
    `simgpu.disable`.
    """


class DeviceMismatchError(SimGPUError, RuntimeError):
    """Tensors of one operation are on different devices, or an event and its stream do.

    The wording is CUDA's. The way out is CUDA's too: move the arguments with ``.to(device)``.
    """


class OutOfMemoryError(SimGPUError, torch.OutOfMemoryError):
    """A device, or the machine that simulates it, has no room for a tensor.

    The wording is CUDA's. `simgpu.devices(n, memory=...)` says how much a device has.
    """


class CaptureError(SimGPUError, torch.AcceleratorError):
    """Something that a capture into a graph forbids, or a graph that could not be captured.

    The wording is CUDA's. The way out is CUDA's too: wait for nothing within ``torch.cuda.graph``
    for the device, and copy only between devices or from and to pinned memory.
    """


class InjectedFaultError(SimGPUError, torch.AcceleratorError):
    """`simgpu.faults` made a kernel or a copy fail; the text says which."""


class DeviceLostError(SimGPUError, torch.AcceleratorError):
    """A device was used that is lost: by `simgpu.faults`, or by an error of a kernel.

    The latter are CUDA's device-side asserts (an index out of range), under `simgpu.asynchronous`.

    As with CUDA's sticky errors there is no way out but to end the devices (on CUDA: the process).
    """


class NaNSentError(SimGPUError, torch.AcceleratorError):
    """A rank gave a NaN to a collective, and ``TORCH_NCCL_NAN_CHECK`` is set.

    On a GPU this is a device-side assert, which ends the process.
    """


class NotReadyError(SimGPUError, torch.AcceleratorError):
    """The time between two events was asked for before both were passed.

    The wording is CUDA's. The way out is CUDA's too: wait for the second one (``synchronize``).
    """


class UnrepeatableStepError(SimGPUError, ValueError):
    """A step that is to be run many times gives other results each time.

    Likely causes: state that is not named in ``state=[...]``, or random numbers from elsewhere
    than torch's generators, Python's ``random`` and ``numpy.random``.
    """


class ScheduleError(SimGPUError, RuntimeError):
    """Something that a schedule of threads cannot do; the root of its other errors."""


class DeadlockError(ScheduleError):
    """No thread of a schedule, or rank of `simgpu.ranks`, can go on.

    The text says what each waits for, and where.
    """


class LivelockError(ScheduleError):
    """Threads of a schedule go on for ever, and no device has anything to do."""


class ScheduleDivergedError(ScheduleError):
    """A schedule that was to be replayed came to other choices than the first time.

    Likely causes: a set or a dictionary ordered by address, the time or another process of the
    host, random numbers without a seed, threads from before the schedule, a changed program. The
    way out: take them out of the program, or, where it has changed, look for a new token.
    """


class UncontrolledWaitError(ScheduleError):
    """A thread of a schedule waits for something that the schedule does not know of.

    Likely cause: a lock that was made before the schedule, and is held by a thread that waits for
    its turn. The way out: make it within the schedule.
    """


class BackendSlotTakenError(SimGPUError, RuntimeError):
    """Another package already uses PyTorch's one slot for outside devices (PrivateUse1)."""


class RealCudaError(SimGPUError, RuntimeError):
    """Simulated devices were to replace CUDA on a machine that has real CUDA devices."""


class ForkedError(SimGPUError, RuntimeError):
    """A forked child used simulated devices that its parent was using already.

    The wording is CUDA's. The way out is CUDA's too: start the child by ``spawn``, and enter
    ``simgpu.devices(n)`` in it or set SIMGPU_DEVICE_COUNT.
    """


class UnsupportedError(SimGPUError, NotImplementedError):
    """Something that a simulated device cannot do; the text says what to do instead."""


class CollectiveMismatchError(SimGPUError, _BackendError):
    """The ranks of a group made different calls: another operator, shape, dtype, root or order.

    Raised in all of them, with both calls and their lines. The way out: make all ranks of a group
    make the same calls in the same order.

    Attributes:
        reported_by: the rank whose process prints the traceback, where another one prints a line;
            None where this one prints its own.
    """

    reported_by: int | None = None


class CollectiveTimeoutError(SimGPUError, _BackendError):
    """A collective waited for other ranks for longer than its group's timeout.

    Likely causes: a rank that has ended or left a loop early, or groups used in different orders.
    """


class RankLostError(SimGPUError, _BackendError):
    """Another rank of the group has ended, or its group was aborted or destroyed."""


class SilentBugWarning(UserWarning):
    """A bug that a GPU does not show; docs/silent_bugs.md has the list.

    Those below are only warned of with ``SIMGPU_STRICT=1``, but for `ParameterOrderWarning`.
    """


class ParameterOrderWarning(SilentBugWarning):
    """DistributedDataParallel has the same parameters in another order on another rank."""


class ReplicaStateWarning(SilentBugWarning):
    """The forward of a DataParallel replica writes an attribute or buffer, which is then lost."""


class SamplerEpochWarning(SilentBugWarning):
    """A DistributedSampler gives the order of an epoch once more: `set_epoch` was not called."""


class SharedFileWarning(SilentBugWarning):
    """Several ranks write the same file."""
