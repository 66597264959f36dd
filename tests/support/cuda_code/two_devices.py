"""Operators whose tensors are on two devices: what is accepted, where results are, and the words.

A case is a line of `CALLS`, an expression, with the devices of its tensors: `here` and `there`.
"""

import torch
import torch.nn.functional as F

from tests.support.cuda_code.sides import outcome, same_words

# The devices of `here` and `there`, as ordinals; None is the CPU.
PAIRS = ([0, 1], [0, None], [None, 0])

CALLS = (
    "matrix(here).copy_(matrix(there)).device",
    "matrix(here).masked_fill(mask(there), 1.0).device",
    "matrix(here).masked_fill_(mask(there), 1.0).device",
    "matrix(here).masked_fill(mask(here), torch.tensor(1.0, device=there)).device",
    "matrix(here).masked_scatter(mask(there), matrix(here)).device",
    "matrix(here).masked_scatter(mask(here), matrix(there)).device",
    "matrix(here)[index(there)].device",
    "matrix(here).__setitem__(index(there), 1.0)",
    "matrix(here).__setitem__(index(there), torch.ones(3, device=here))",
    "matrix(here).__setitem__(index(here), torch.ones(3, device=there))",
    "matrix(here).__setitem__(index(here), torch.ones((), device=there))",
    "matrix(here).index_put_((index(there),), torch.ones(2, 3, device=here)).device",
    "torch.index_put(matrix(here), (index(there),), torch.ones(2, 3, device=here)).device",
    "matrix(here).index_put_((index(there),), torch.ones(2, 3, device=here), "
    "accumulate=True).device",
    "matrix(here).put_(index(there), torch.ones(2, device=here)).device",
    "matrix(here).take(index(there)).device",
    "matrix(here).index_select(0, index(there)).device",
    "matrix(here).index_add_(0, index(there), torch.ones(2, 3, device=here)).device",
    "matrix(here).index_fill_(0, index(there), 1.0).device",
    "matrix(here).index_copy_(0, index(there), torch.ones(2, 3, device=here)).device",
    "matrix(here).is_set_to(matrix(there))",
    "matrix(here).set_(matrix(there)).device",
    "torch.equal(matrix(here), matrix(there))",
    "torch.allclose(matrix(here), matrix(there))",
    "matrix(here).masked_select(mask(there)).device",
    "F.embedding(torch.zeros(2, dtype=torch.bool, device=here), matrix(there))",
    "torch.dist(matrix(here), matrix(there))",
    "torch.searchsorted(matrix(here), matrix(there)).device",
    "torch.bucketize(matrix(here), torch.zeros(2, device=there)).device",
    "torch.isin(matrix(here), matrix(there)).device",
    "torch.bincount(index(here), torch.ones(2, device=there)).device",
    "torch.lerp(matrix(here), matrix(here), matrix(there)).device",
    "torch.clamp(matrix(here), matrix(there)).device",
    "torch.addcmul(matrix(here), matrix(here), matrix(there)).device",
    "torch.cdist(matrix(here), matrix(there)).device",
    "torch.dot(torch.ones(3, device=here), torch.ones(3, device=there))",
    "torch.mv(matrix(here), torch.ones(3, device=there))",
    "torch.baddbmm(torch.ones(1, 3, 3, device=here), torch.ones(1, 3, 3, device=there), "
    "torch.ones(1, 3, 3, device=here))",
    "torch.linalg.solve(torch.eye(3, device=here), matrix(there))",
    "torch.cholesky_solve(matrix(here), torch.eye(3, device=there))",
    "torch.linalg.solve_triangular(torch.eye(3, device=here), matrix(there), upper=True)",
    "torch.nn.GRU(3, 3).to(here)(torch.ones(2, 1, 3, device=there))[0].device",
    "F.prelu(matrix(here), torch.ones(1, device=there)).device",
    "F.group_norm(torch.ones(1, 2, 3, device=here), 2, torch.ones(2, device=there)).device",
    "F.rms_norm(matrix(here), (3,), torch.ones(3, device=there)).device",
    "F.bilinear(matrix(here), matrix(here), torch.ones(2, 3, 3, device=there)).device",
    "F.grid_sample(torch.ones(1, 1, 3, 3, device=here), torch.zeros(1, 2, 2, 2, "
    "device=there)).device",
    "F.embedding_bag(index(here).view(1, 2), matrix(there)).device",
    "F.kl_div(matrix(here), matrix(there)).device",
    "F.binary_cross_entropy(matrix(here), matrix(there)).device",
    "F.conv1d(torch.ones(1, 1, 4, device=here), torch.ones(1, 1, 2, device=here), "
    "torch.ones(1, device=there)).device",
    "F.scaled_dot_product_attention(torch.ones(1, 1, 3, 8, device=here), torch.ones(1, 1, "
    "3, 8, device=there), torch.ones(1, 1, 3, 8, device=here)).device",
    "F.scaled_dot_product_attention(*[torch.ones(1, 1, 3, 8, device=here)]*3, "
    "attn_mask=torch.ones(3, 3, dtype=torch.bool, device=there)).device",
    "torch.multinomial(torch.ones(3, device=here), 1, generator=torch.Generator(there)).device",
    "torch.normal(torch.ones(3, device=here), torch.ones(3, device=there)).device",
    "torch.bernoulli(torch.ones(3, device=here), generator=torch.Generator(there)).device",
    "[t.device for t in torch._foreach_add([matrix(here)], [matrix(there)])]",
    "torch._foreach_add_([matrix(here)], torch.tensor(1., device=there)) and 1",
    "[t.device for t in torch._foreach_mul([matrix(here)], torch.tensor(1., device=there))]",
    "torch._foreach_copy_([matrix(here)], [matrix(there)]) and 1",
    "[t.device for t in torch._foreach_norm([matrix(here), matrix(there)])]",
    "torch.cat([matrix(here)], out=matrix(there)).device",
    "torch.stack([matrix(here), matrix(there)]).device",
    "torch.block_diag(matrix(here), matrix(there)).device",
    'torch.einsum("ij, jk->ik", matrix(here), matrix(there)).device',
    "torch.kron(matrix(here), matrix(there)).device",
    "torch.where(mask(here), matrix(here), torch.ones((), device=there)).device",
    "torch.where(mask(there), matrix(here), matrix(here)).device",
    "matrix(here).repeat_interleave(torch.ones(3, dtype=torch.int64, device=there), dim=0).device",
    "F.max_unpool1d(torch.ones(1, 1, 3, device=here), torch.zeros(1, 1, 3, "
    "dtype=torch.int64, device=there), 1).device",
    "matrix(here).scatter_reduce(0, torch.zeros(3, 3, dtype=torch.int64, device=there), "
    'matrix(here), "sum").device',
    "torch.cross(matrix(here), matrix(there), dim=1).device",
    "torch.histc(torch.ones(3, device=here), 3, out=torch.ones(3, device=there)).device",
    "torch.polar(matrix(here), matrix(there)).device",
    "torch.complex(matrix(here), matrix(there)).device",
    "torch.ones(3, device=here, requires_grad=True).mul(2).backward(torch.ones(3, device=there))",
    "torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.int64, device=here), "
    "torch.ones(2, device=there), (3,)).device",
    "torch.nested.nested_tensor([matrix(here), matrix(there)]).device",
    "torch.nn.utils.rnn.pad_sequence([matrix(here), matrix(there)]).device",
    "torch.tensordot(matrix(here), matrix(there), 1).device",
    'torch.segment_reduce(matrix(here), "sum", lengths=torch.tensor([1, 2], device=there)).device',
    "torch.fake_quantize_per_channel_affine(matrix(here), torch.ones(3, device=there), "
    "torch.zeros(3, device=there, dtype=torch.int32), 0, 0, 255).device",
    "torch.renorm(matrix(here), 2, 0, 1, out=matrix(there)).device",
    "torch._amp_foreach_non_finite_check_and_unscale_([matrix(here)], torch.zeros(1, "
    "device=there), torch.ones(1, device=there))",
    "torch.optim.Adam([torch.nn.Parameter(matrix(here)), "
    "torch.nn.Parameter(matrix(there))], fused=True).step()",
)


def _names(here, there):
    return {
        "torch": torch,
        "F": F,
        "here": here,
        "there": there,
        "matrix": lambda device, dtype=torch.float32: torch.zeros(3, 3, device=device, dtype=dtype),
        "index": lambda device: torch.zeros(2, dtype=torch.int64, device=device),
        "mask": lambda device: torch.zeros(3, 3, dtype=torch.bool, device=device),
    }


def cases(model):
    if model == "h100":
        for call in CALLS:
            for pair in PAIRS:
                yield {"call": call, "devices": pair}


def run(case, side):
    """The text of the result, or type and words of the error."""
    cpu = torch.device("cpu")
    devices = [cpu if one is None else side.device(one) for one in case["devices"]]
    code = compile(case["call"], "<call>", "eval")
    with side.values():
        return outcome(lambda: eval(code, _names(*devices)))


agree = same_words
