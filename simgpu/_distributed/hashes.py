"""`_hash_tensors`: the number of what a tensor holds, which PyTorch logs in its debug mode.

With `TORCH_DISTRIBUTED_DEBUG=DETAIL` and NCCL it logs one for each Python object that ranks send
and receive. A build without NCCL has no such function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def of_tensors(tensors: Iterable[torch.Tensor]) -> int:
    """A number of 64 bits, equal for equal bytes on any device; 0 where there are none.

    As in PyTorch, the whole memory under each tensor counts, of which it may be a part.
    """
    digest, count = hashlib.blake2b(digest_size=8), 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.numel() and storage.nbytes():
            held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            digest.update(held.cpu().numpy().tobytes())
            count += storage.nbytes()
    return int.from_bytes(digest.digest(), "little") if count else 0
