"""Kernels in Triton's interpreter, as programs write them: prints as JSON what came of each."""

import json

import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra import libdevice

import simgpu

DEVICE = triton.runtime.driver.active.get_active_torch_device()
seen = {"device": str(DEVICE), "target": triton.runtime.driver.active.get_current_target().arch}


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    tl.store(out_ptr + at, x + tl.load(y_ptr + at, mask=inside), mask=inside)


def add(x, y):
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, y, out, x.numel(), BLOCK=16
    )
    return out


@triton.jit
def halved(x):
    return libdevice.sinh(x) / 2


@triton.autotune([triton.Config({"BLOCK": size}) for size in (8, 16)], key=["n"])
@triton.jit
def scale_kernel(x_ptr, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x_ptr += at
    x = tl.load(x_ptr, mask=at < n)
    for step in range(2):
        x -= step.to(tl.float32) / 8
    tl.store(x_ptr, tl.where(factor.to(tl.float32) > 0, halved(x), x), mask=at < n)


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return add(x, y)

    @staticmethod
    def backward(ctx, grad):
        return grad, add(grad.contiguous(), grad.new_zeros(grad.shape))


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(7, device=DEVICE))

    def forward(self, x):
        return Add.apply(x, self.bias.expand_as(x).contiguous())


x, y = torch.arange(50.0, device=DEVICE), torch.ones(50, device=DEVICE)
with simgpu.trace() as trace:
    seen["added"] = torch.equal(add(x, y), x + y)
seen["kernels"] = next(record.op for record in trace.kernels)
scaled = torch.ones(10, device=DEVICE)
scale_kernel[lambda meta: (triton.cdiv(10, meta["BLOCK"]),)](scaled, 3.0, 10)
seen["scaled"] = bool((scaled < 1).all())

model = nn.DataParallel(Biased())
out = model(torch.ones(8, 7, device=DEVICE))
out.sum().backward()
seen["replicas"] = [out.tolist() == [[2.0] * 7] * 8, model.module.bias.grad.tolist() == [8.0] * 7]

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = add(x, y)
x.fill_(4)
graph.replay()
seen["captured"] = captured.tolist() == [5.0] * 50

with simgpu.clock("A100"):
    times = [triton.testing.do_bench(lambda: add(x, y)) for _ in range(2)]
seen["bench"] = round(times[0], 6) == round(times[1], 6) > 0
with simgpu.asynchronous() as queued:
    late = add(x, y)
    seen["queued"] = queued.pending > 0 and late.tolist() == [5.0] * 50

with simgpu.races() as races:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    first = add(x, y)
    with torch.cuda.stream(side):
        add(x, y)  # reads what the other reads
        add(first, y)
    torch.cuda.synchronize()
seen["races"] = [(race.first.op, race.second.op) for race in races]


def error(function, *args):
    try:
        function(*args)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"


seen["errors"] = [error(add, x.to("cuda:1"), y), error(add, x.cpu(), y)]
seen["registers"] = error(lambda: add_kernel.warmup(x, y, x, 1, BLOCK=16, grid=(1,)).n_regs)
print(json.dumps(seen))
