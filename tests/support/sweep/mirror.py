"""The same arguments on a device: equal bytes, strides and offsets, shared where they are shared.

A plain `.to(device)` would make every sample contiguous and independent of the others, and with
that hide what views, overlaps and storages larger than their tensor do to a kernel.
"""

import torch
from torch.utils._pytree import tree_leaves, tree_map


class Mirror:
    """Copies arguments of one call to `device`; what shares memory here shares it there.

    The device may be the CPU, so that two sides of a comparison begin with equal copies.
    """

    def __init__(self, device):
        self.device = device
        self._storages = {}
        self._tensors = {}

    def __call__(self, arguments):
        return tree_map(self._leaf, arguments)

    def reaches_device(self, arguments):
        """Whether anything in `arguments` names a device: `torch.arange(3)` is the CPU's affair."""
        return any(
            isinstance(leaf, torch.Tensor) or self._leaf(leaf) is not leaf
            for leaf in tree_leaves(arguments)
        )

    def _leaf(self, leaf):
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in self._tensors:
                # The original is kept alongside, so that its id stays taken.
                self._tensors[id(leaf)] = leaf, self._tensor(leaf)
            return self._tensors[id(leaf)][1]
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
            return self.device if torch.device(leaf).type == "cpu" else leaf
        return leaf

    def _tensor(self, tensor):
        with torch.no_grad():
            source = tensor.detach()
            if tensor.layout is not torch.strided:
                moved = source.to(self.device, copy=True)
            else:
                moved = torch.empty(0, dtype=tensor.dtype, device=self.device)
                storage = self._storage(tensor.untyped_storage())
                moved.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
                if tensor.is_conj():
                    moved = torch._conj(moved)
                if tensor.is_neg():
                    moved = torch._neg_view(moved)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(moved, tensor.requires_grad)
        moved = moved.data  # another version counter, which begins at zero
        return moved.requires_grad_(tensor.requires_grad)

    def _storage(self, storage):
        key = storage._cdata
        if key not in self._storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._storages[key] = storage, whole.to(self.device, copy=True).untyped_storage()
        return self._storages[key][1]
