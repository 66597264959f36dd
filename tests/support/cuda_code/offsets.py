"""How far each random operator moves the generator of its device.

A case is the name of a call, a number of elements, and a model of GPU, whose number of threads
decides.
"""

import struct
import warnings

import torch
import torch.nn.functional as F

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16)
f32, f64, f16 = FLOATS[:3]

# Threads that a device runs at once: multiprocessors times threads of each.
THREADS = {"h100": 132 * 2048, "a100": 108 * 2048, "t4": 40 * 1024}


def _empty(n, device, dtype=f32):
    return torch.empty(n, dtype=dtype, device=device)


def _half(n, device, dtype=f32):
    return torch.full((n,), 0.5, dtype=dtype, device=device)


def _by_dtype():
    """Calls that there are for each dtype: name -> function of (n, device)."""
    of_float = {
        "uniform_": lambda n, d, t: _empty(n, d, t).uniform_(),
        "normal_": lambda n, d, t: _empty(n, d, t).normal_(),
        "exponential_": lambda n, d, t: _empty(n, d, t).exponential_(),
        "cauchy_": lambda n, d, t: _empty(n, d, t).cauchy_(),
        "log_normal_": lambda n, d, t: _empty(n, d, t).log_normal_(),
        "geometric_": lambda n, d, t: _empty(n, d, t).geometric_(0.3),
        "bernoulli_ of a number": lambda n, d, t: _empty(n, d, t).bernoulli_(0.3),
        "bernoulli": lambda n, d, t: torch.bernoulli(_half(n, d, t)),
        "bernoulli_ of a tensor": lambda n, d, t: _empty(n, d, t).bernoulli_(_half(n, d)),
        "dropout": lambda n, d, t: F.dropout(_half(n, d, t), 0.4),
        "native_dropout": lambda n, d, t: torch.native_dropout(_half(n, d, t), 0.4, True),
        "alpha_dropout": lambda n, d, t: F.alpha_dropout(_half(n, d, t), 0.4, True),
        "rrelu": lambda n, d, t: F.rrelu(_half(n, d, t), training=True),
        "random_": lambda n, d, t: _empty(n, d, t).random_(),
        "normal of means": lambda n, d, t: torch.normal(_half(n, d, t), 2.0),
        "normal of deviations": lambda n, d, t: torch.normal(2.0, _half(n, d, t)),
        "normal of both": lambda n, d, t: torch.normal(_half(n, d, t), _half(n, d, t)),
        "poisson": lambda n, d, t: torch.poisson(_half(n, d, t)),
        "_standard_gamma": lambda n, d, t: torch._standard_gamma(_half(n, d, t)),
    }
    of_integer = {
        "random_": of_float["random_"],
        "bernoulli_ of a number": of_float["bernoulli_ of a number"],
        "random_ below 100": lambda n, d, t: _empty(n, d, t).random_(100),
        "geometric_": of_float["geometric_"],
    }
    rows = [(of_float, dtype) for dtype in FLOATS] + [(of_integer, dtype) for dtype in INTEGERS]
    calls = {
        f"{name} {str(dtype)[6:]}": lambda n, d, call=call, dtype=dtype: call(n, d, dtype)
        for table, dtype in rows
        for name, call in table.items()
    }
    boolean = {
        "random_ bool": lambda n, d: _empty(n, d, torch.bool).random_(),
        "bernoulli_ bool": lambda n, d: _empty(n, d, torch.bool).bernoulli_(0.3),
    }
    return calls | boolean


def _attention(n, d, size, dtype):
    parts = [_half(n * size, d, dtype).reshape(1, 1, n, size)] * 3
    return F.scaled_dot_product_attention(*parts, dropout_p=0.2)


_OTHERS = {
    "rand": lambda n, d: torch.rand(n, device=d),
    "randn": lambda n, d: torch.randn(n, device=d),
    "randn complex64": lambda n, d: torch.randn(n, dtype=torch.complex64, device=d),
    "rand complex128": lambda n, d: torch.rand(n, dtype=torch.complex128, device=d),
    "normal_ complex128": lambda n, d: _empty(n, d, torch.complex128).normal_(),
    "randint below 10": lambda n, d: torch.randint(10, (n,), device=d),
    "randint below 2**28": lambda n, d: torch.randint(2**28, (n,), device=d),
    "randint below 2**40": lambda n, d: torch.randint(2**40, (n,), device=d),
    "randint int32": lambda n, d: torch.randint(10, (n,), dtype=torch.int32, device=d),
    "randint float32": lambda n, d: torch.randint(10, (n,), dtype=f32, device=d),
    "randint float32 below 2**30": lambda n, d: torch.randint(2**30, (n,), dtype=f32, device=d),
    "rand_like": lambda n, d: torch.rand_like(_half(n, d)),
    "randperm": lambda n, d: torch.randperm(n, device=d),
    "randperm int32": lambda n, d: torch.randperm(n, device=d, dtype=torch.int32),
    "randperm float32": lambda n, d: torch.randperm(n, device=d, dtype=f32),
    "binomial": lambda n, d: torch.binomial(_half(n, d) * 10, _half(n, d)),
    "_sample_dirichlet": lambda n, d: torch._sample_dirichlet(_half(n, d).reshape(n, 1)),
    "multinomial, 1 of n": lambda n, d: torch.multinomial(_half(n, d), 1),
    "multinomial, 3 of n": lambda n, d: torch.multinomial(_half(n, d), 3),
    "multinomial, 7 with replacement": lambda n, d: torch.multinomial(_half(n, d), 7, True),
    "multinomial, 1 with replacement": lambda n, d: torch.multinomial(_half(n, d), 1, True),
    "multinomial, rows": lambda n, d: torch.multinomial(_half(n * 5, d).reshape(n, 5), 2),
    "multinomial, rows with replacement": lambda n, d: torch.multinomial(
        _half(n * 5, d).reshape(n, 5), 2, True
    ),
    "multinomial, rows, 1 with replacement": lambda n, d: torch.multinomial(
        _half(n * 5, d).reshape(n, 5), 1, True
    ),
    "multinomial float64": lambda n, d: torch.multinomial(_half(n, d, f64), 7, True),
    "dropout2d": lambda n, d: F.dropout2d(_half(n * 4, d).reshape(n, 1, 2, 2), 0.5),
    "dropout, p = 1": lambda n, d: F.dropout(_half(n, d), 1.0),
    "dropout, p = 0": lambda n, d: F.dropout(_half(n, d), 0.0),
    "dropout with a gradient": lambda n, d: F.dropout(_half(n, d).requires_grad_(), 0.4),
    "dropout, every second": lambda n, d: F.dropout(_half(2 * n, d)[::2], 0.4),
    "dropout, transposed": lambda n, d: F.dropout(_half(3 * n, d).reshape(3, n).t(), 0.4),
    "dropout, columns": lambda n, d: F.dropout(_half(3 * n, d).reshape(n, 3)[:, :2], 0.4),
    "dropout, odd address": lambda n, d: F.dropout(_half(n + 1, d)[1:], 0.4),
    "uniform_, every second": lambda n, d: _empty(2 * n, d)[::2].uniform_(),
    "uniform_, columns": lambda n, d: _empty(3 * n, d).reshape(n, 3)[:, :2].uniform_(),
    "uniform_, transposed": lambda n, d: _empty(3 * n, d).reshape(3, n).t().uniform_(),
    "gumbel_softmax": lambda n, d: F.gumbel_softmax(_half(n, d).reshape(n, 1), dim=-1),
    "trunc_normal_": lambda n, d: torch.nn.init.trunc_normal_(_empty(n, d)),
    "rrelu_": lambda n, d: F.rrelu_(_half(n, d), training=True),
    "fractional_max_pool2d": lambda n, d: F.fractional_max_pool2d(
        _half(n * 25, d).reshape(n, 1, 5, 5), 2, output_size=3
    ),
    "attention": lambda n, d: _attention(n, d, 8, f32),
    "attention float16": lambda n, d: _attention(n, d, 64, f16),
    "LSTM": lambda n, d: torch.nn.LSTM(3, 4, 2, dropout=0.5).to(d)(_half(n * 3, d).view(n, 1, 3)),
}
CALLS = _by_dtype() | _OTHERS

# Of these, more elements than that take long and show nothing new.
_MOST = {"attention": 1100, "LSTM": 300, "fractional_max_pool2d": 5000}
# The others need an element, or more.
_LEAST = {"multinomial, 3": 3, "multinomial": 1, "dropout2d": 1, "gumbel": 1, "trunc": 1}
_LEAST |= {"fractional": 1, "attention": 1, "LSTM": 1}


def _bound(table, name, default):
    return next((bound for start, bound in table.items() if name.startswith(start)), default)


def most(name, threads):
    """With how many elements a call is recorded at most, on a GPU of so many threads."""
    if name.startswith("randperm"):
        return 2 * threads - 1
    return _bound(_MOST, name, 8 * threads + 3)


def cases(model):
    """On the first model many sizes, on others those around its number of threads."""
    t = THREADS[model]
    around = [1, 257, t + 1, 4 * t + 1]
    if model == "h100":
        around = [
            0,
            1,
            3,
            4,
            255,
            256,
            257,
            1000,
            4099,
            t - 1,
            t,
            t + 1,
            2 * t + 5,
            4 * t,
            4 * t + 1,
        ]
        around.append(8 * t + 3)
    for name in CALLS:
        for n in around:
            if _bound(_LEAST, name, 0) <= n <= most(name, t):
                yield {"call": name, "n": n, "model": model}


def _offset(side, device):
    state = side.module.get_rng_state(device)
    return struct.unpack("<Qq", bytes(state.tolist()))[1]


def run(case, side):
    """By how much the offset grew, and the type of the error if there was one."""
    device = side.device()
    side.module.manual_seed(7)
    before, error = _offset(side, device), None
    try:
        with warnings.catch_warnings(), side.values():
            warnings.simplefilter("ignore")
            CALLS[case["call"]](case["n"], device)
    except (RuntimeError, ValueError) as raised:
        error = type(raised).__name__
    return [_offset(side, device) - before, error]
