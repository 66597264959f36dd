"""What the operator fuzzer does to the arguments of a call; torch is imported by its children."""

from __future__ import annotations


def spoil(leaf, pick, places):
    """A leaf of a call's arguments, or something else in its place."""
    import torch

    if isinstance(leaf, torch.Tensor):
        return spoil_tensor(leaf, pick, places) if pick.random() < 0.9 else spoil_other(pick, leaf)
    if isinstance(leaf, (int, float)) and pick.random() < 0.2:
        numbers = [0, 1, -1, 2, 3, -7, 64, 0.5, -1e30, True, 2**31, -(2**63), None]
        return pick.choice([*numbers, 10**12, 2**61, 2**62])
    if pick.random() < 0.03:
        return spoil_other(pick, leaf)
    return leaf


def spoil_other(pick, leaf):
    return pick.choice([None, 0, 2.5, "sum", (), [leaf], [leaf, None], leaf])


def misplace(leaf, pick):
    """An integer, or a tensor of them, with numbers that name no place; others stay."""
    import torch

    if isinstance(leaf, bool) or not isinstance(leaf, (int, torch.Tensor)) or pick.random() < 0.4:
        return leaf
    if isinstance(leaf, int):
        return pick.choice([leaf, leaf + 1, -leaf, 0, -1, *FAR])
    if leaf.dtype not in (torch.int64, torch.int32) or leaf.layout is not torch.strided:
        return leaf
    limits = torch.iinfo(leaf.dtype)
    number = pick.choice([-1, leaf.numel(), leaf.shape[-1] if leaf.dim() else 1, *FAR])
    number = min(max(number, limits.min), limits.max)
    how = pick.choice(["all", "one", "one", "add", "flip", "restride"])
    changed = leaf.clone()
    if how == "all":
        changed.fill_(number)
    elif how == "one" and leaf.numel():
        place = pick.randrange(leaf.numel())
        changed = changed.flatten().index_fill(0, torch.tensor([place]), number).view(leaf.shape)
    elif how == "add":
        changed += pick.choice([1, -1, 7])
    elif how == "flip" and leaf.dim():
        changed = changed.flip(-1)  # rising ends of rows fall
    elif how == "restride" and leaf.dim():
        changed = changed.as_strided(leaf.shape, [0] * leaf.dim())
    return changed


def reshape(leaf, pick):
    """A tensor of another shape, mostly of fewer elements; others, and most tensors, stay."""
    import torch

    if not isinstance(leaf, torch.Tensor) or pick.random() < 0.6:
        return leaf
    for _ in range(pick.choice([1, 1, 2])):
        try:
            leaf = pick.choice(SHAPES)(leaf)
        except (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError):
            continue
    return leaf


# Past whatever there is, past what 32 bits hold, and past what sizes in bytes can be.
FAR = (-7, 100, 10**5, 2**31, -(2**31), 10**9, 10**12, -(10**12), 2**61, 2**62, -(2**62))


def spoil_tensor(tensor, pick, places):
    import torch

    tensor = misplace(tensor.detach(), pick) if pick.random() < 0.3 else tensor.detach()
    for _ in range(pick.choice([0, 0, 1, 1, 2])):
        change = pick.choice(SHAPES)
        try:
            tensor = change(tensor)
        except (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError):
            continue
    if pick.random() < 0.15:
        dtypes = "float64 float16 bfloat16 int64 int32 uint8 int8 bool complex64 complex128"
        tensor = tensor.to(getattr(torch, pick.choice(dtypes.split())))
    place = places[0] if pick.random() < 0.75 else pick.choice(places)
    if tensor.layout is torch.strided and pick.random() < 0.5:
        from tests.support.sweep.mirror import Mirror

        tensor = Mirror(place)(tensor)
    else:
        tensor = tensor.to(place)
    if pick.random() < 0.2 and (tensor.is_floating_point() or tensor.is_complex()):
        tensor = tensor.detach().requires_grad_()
    return tensor


SHAPES = (
    lambda x: x[:0],
    lambda x: x[..., :0],
    lambda x: x[1:],
    lambda x: x[0],
    lambda x: x[None],
    lambda x: x.unsqueeze(-1),
    lambda x: x.t(),
    lambda x: x.transpose(0, -1),
    lambda x: x.flatten(),
    lambda x: x.expand(3, *x.shape),
    lambda x: x[..., ::2],
    lambda x: x.sum(),
    lambda x: x.repeat(2, *([1] * (x.dim() - 1))),
    lambda x: x.as_strided(x.shape, [0] * x.dim()),
    lambda x: x.to_sparse(),
    lambda x: x.to_sparse_csr(),
    lambda x: x.conj(),
    lambda x: x.new_empty(0),
    lambda x: x.new_full(x.shape, 1 << 20),
    lambda x: -x,
)


def outputs(result, pick, places):
    """An `out=` made of an earlier result, spoilt."""
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, lambda x: spoil_tensor(x, pick, places), result)
