"""The cases that a recording is made of, and what of each is written into it.

Adding a case here adds it to the next recording; the ones made before stay as they are.
"""

from collections.abc import Iterator

from tests.support.observe import BAD_CALLS, MODELS, Case

# Of an operation, what is told of it: the rest follows from it, and would make the file long.
KEYS = {
    "scatter": ("sizes", "slots", "views"),
    "gather": ("shape", "slot", "dtype", "values", "views"),
    "broadcast": ("slots", "values", "views"),
    "reduce_add": ("slot", "dtype", "values", "parts_after"),
    "model": ("values", "slot", "gradients", "input_gradient", "buffers"),
    "buckets": ("slots", "dtypes", "sums", "sum_slots"),
    "bad_call": ("error", "text"),
}

MOST = 8
EXACT = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "int8")


def corpus(count: int) -> Iterator[Case]:
    """Yield the cases for a machine of `count` devices (of at most 8)."""
    for n in range(1, min(count, MOST) + 1):
        slots = tuple(range(n))
        for batch in range(65):
            yield Case("scatter", slots, (batch, 1), source=0)
        for batch in sorted({0, 1, n - 1, n, n + 1, 2 * n + 1, 30}):
            yield Case("scatter", slots, (2, batch, 2), dim=1, source=0)
            yield Case("scatter", slots, (2, batch), dim=-1, source=-1)
            yield Case("scatter", slots[::-1], (batch, 2), source=0)
        yield Case("scatter", slots, (n * (n + 1) // 2, 1), source=0, chunks=tuple(range(1, n + 1)))
        yield Case("scatter", slots, (3 * n, 1), source=-1, chunks=(3,) * n)
        for batch in sorted({1, n, n + 1, 10}):
            yield Case("gather", slots[::-1], (batch, 2), target=0)
        for dtype in EXACT:
            yield Case("gather", slots, (n, 1), dtype=dtype, target=n - 1)
            yield Case("reduce_add", slots, (2, 2), dtype=dtype, target=n - 1)
        for target in (-1, 0):
            yield Case("gather", slots, (2, n), dim=1, target=target)
        for dtype in ("float32", "float16", "bfloat16"):
            yield Case("reduce_add", slots, (8,), dtype=dtype, numbers="ordinary")
        yield Case("broadcast", slots[::-1], (2, 3))
        for size in (1, 64):
            yield Case("buckets", slots, (2, 3), chunks=(size,))
        for name in MODELS:
            for batch in (1, n + 1):
                yield Case("model", slots, (batch, 2), name=name)
        for name in BAD_CALLS:
            yield Case("bad_call", slots, (5, 2), name=name)
