"""Backward passes that raise, for each place where PyTorch calls users' code in one."""

from torch import nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


class PlantedError(Exception):
    """Raised on purpose."""


def fail(*_):
    raise PlantedError("raised in a backward pass")


class Custom(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        fail()


def tensor_hook(x):
    y = x * x
    y.register_hook(fail)
    return y


def node_hook(x):
    y = x * x
    y.grad_fn.register_hook(fail)
    return y


def node_prehook(x):
    y = x * x
    y.grad_fn.register_prehook(fail)
    return y


def accumulation_hook(x):
    x.register_post_accumulate_grad_hook(fail)
    return x * x


def module_hook(x):
    layer = nn.Linear(4, 4).to(x.device)
    layer.register_full_backward_hook(fail)
    return layer(x)


def unpack_hook(x):
    with saved_tensors_hooks(lambda saved: saved, fail):
        return x * x


def recomputation(x):
    calls = []

    def once(value):
        calls.append(value)
        return value * value if len(calls) == 1 else fail()

    return checkpoint(once, x, use_reentrant=False)


KINDS = {
    f.__name__: f
    for f in (
        tensor_hook,
        node_hook,
        node_prehook,
        accumulation_hook,
        module_hook,
        unpack_hook,
        recomputation,
    )
} | {"custom_function": Custom.apply}
