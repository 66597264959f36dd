"""`torch.cuda.cudart()`: the functions of CUDA's runtime library that PyTorch hands to programs.

They do what they say and return 0, CUDA's word for success, or the number of an error. The names
are those of torch/csrc/cuda/shared/cudart.cpp that have a meaning here.
"""

from __future__ import annotations

from typing import Any

from simgpu._backend.device_module import memory
from simgpu._memory import pinned
from simgpu._native.out_arguments import write_word
from simgpu._patches import Action, Patch, Row
from simgpu._runtime import streams, world

_MESSAGES = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    709: "context is destroyed",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    999: "unknown error",
}


class _CudaError(int):
    """A status of CUDA's runtime library: 0 is success."""

    success = 0

    def __repr__(self) -> str:
        return f"<cudaError {int(self)}: {_MESSAGES.get(self, 'unknown error')}>"


class _RuntimeLibrary:
    """What `torch.cuda.cudart()` returns."""

    cudaError = _CudaError

    @staticmethod
    def cudaGetErrorString(error: int) -> str:
        """A status in words."""
        return _MESSAGES.get(error, "unrecognized error code")

    @staticmethod
    def cudaMemGetInfo(device: int) -> tuple[int, int]:
        """Free and total bytes of a device."""
        return memory.mem_get_info(device)

    @staticmethod
    def cudaHostRegister(address: int, nbytes: int, flags: int) -> int:
        """Call host memory pinned until it is unregistered."""
        return _CudaError(0 if pinned.register(address, nbytes) else 712)

    @staticmethod
    def cudaHostUnregister(address: int) -> int:
        """Take `cudaHostRegister` back."""
        return _CudaError(0 if pinned.unregister(address) else 713)

    @staticmethod
    def cudaStreamCreate(address: int) -> int:
        """Make a stream of the current device, and write its handle where `address` points."""
        stream = streams.Stream()
        write_word(address, stream.cuda_stream)
        return _CudaError(0)

    @staticmethod
    def cudaStreamDestroy(stream: int) -> int:
        """Nothing to do: a stream is a number."""
        return _CudaError(0)

    @staticmethod
    def cudaDeviceSynchronize() -> int:
        """Wait for the current device."""
        world.synchronize(world.current_device())
        return _CudaError(0)

    @staticmethod
    def cudaProfilerStart() -> int:
        """Nobody records."""
        return _CudaError(0)

    cudaProfilerStop = cudaProfilerStart


_LIBRARY: Any = _RuntimeLibrary()

PATCHES: tuple[Row, ...] = (
    *(
        Patch(
            owner,
            "_cudart",
            value=_LIBRARY,
            why="torch.cuda.cudart(), check_error and CudaError use it",
        )
        for owner in ("torch._C", "torch.cuda")
    ),
    Patch(
        "torch.cuda",
        "cudart",
        value=lambda: _LIBRARY,
        why="PyTorch's own would start the driver of CUDA",
    ),
    Action(
        "host memory that a program has registered: it is no longer pinned at the end",
        run=lambda patches: patches.then(pinned.unregister_all),
        why="other memory may lie at its addresses when there are devices again",
    ),
)
