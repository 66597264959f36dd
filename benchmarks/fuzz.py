"""Benchmark of fuzzing: combinations per second of three properties here, and of JAX.

    python benchmarks/fuzz.py [--seconds 20] [--jax PYTHON]

Ours: hypothesis draws batch and devices, the property runs on simulated devices and is judged, in
two processes. JAX: the same batches, devices and shapes on 8 host CPU devices, the data sharded
over n of them with shard_map and summed, jitted as JAX programs are; each shape that is new has to
be compiled. Batches that n does not divide are padded there, as JAX needs it. No test generation
and no judging is in JAX's time. `--jax` names an interpreter that has jax (it is no dependency).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

JOBS = 2

JAX_SIDE = """
import json, os, sys, time
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map

seconds, shapes = json.loads(sys.stdin.read())
meshes = {n: Mesh(np.array(jax.devices()[:n]), ("d",)) for n in range(1, 9)}

def loss(w, x):
    return jnp.sum(jax.nn.relu(x @ w))

def step(n):
    def local(w, x):
        # The gradient of replicated weights is summed over the devices; outputs keep their order.
        return jax.nn.relu(x @ w), jax.lax.psum(jax.grad(loss)(w, x), "d")
    return jax.jit(shard_map(local, mesh=meshes[n], in_specs=(P(None), P("d")),
                             out_specs=(P("d"), P(None)), check_vma=False))

steps = {n: step(n) for n in meshes}
jax.block_until_ready(steps[2](np.ones((1, 4), "float32"), np.ones((2, 1), "float32")))
done, seen = 0, set()
start = time.perf_counter()
for n, batch, width in shapes:
    rows = -(-batch // n) * n or n
    x = np.zeros((rows, width), "float32")
    x[:batch] = 1
    out, grad = steps[n](np.ones((width, 4), "float32"), x)
    np.asarray(out)[:batch], np.asarray(grad)
    done += 1
    seen.add((n, rows, width))
    if time.perf_counter() - start > seconds:
        break
print(json.dumps([done, time.perf_counter() - start, len(seen), jax.__version__]))
"""


class Over(BaseException):
    """The time is over."""


class Limited:
    """A property that ends its test when its time is over, and counts until then."""

    def __init__(self, test: Any, devices: list[Any], until: float) -> None:
        self.test, self.devices, self.until, self.done = test, devices, until, 0

        def example(case: Any) -> None:
            if time.perf_counter() > self.until:
                raise Over
            self.test(devices=self.devices, case=case)
            self.done += 1

        self.example = example


def cases_of(test: Any) -> Any:
    """Return the strategy from which a property draws its cases."""
    return test.hypothesis._given_kwargs["case"]


def properties(seconds: float, seed: int) -> tuple[dict[str, list[float]], list[tuple[int, ...]]]:
    """Run each property for a third of the time; return its examples, seconds, and the shapes."""
    import hypothesis
    import torch

    import simgpu
    from simgpu._strategies import examples
    from tests.dataparallel import test_gather, test_gradient_sum, test_scatter

    torch.set_num_threads(1)
    tests = {
        "scatter sizes": test_scatter.test_sizes,
        "gather order": test_gather.test_gather_undoes_scatter,
        "gradient sums": test_gradient_sum.test_parameter_gradients_are_those_of_one_device,
    }
    counts: dict[str, list[float]] = {}
    shapes: list[tuple[int, ...]] = []
    examples.set_listener(lambda batch, n, error: shapes.append((n or 1, batch or 0)))
    with simgpu.devices(8) as devices:
        for name, test in tests.items():
            start = time.perf_counter()
            body = Limited(test.hypothesis.inner_test, devices, start + seconds / len(tests))

            run = hypothesis.settings(
                max_examples=10**9,
                database=None,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )(hypothesis.seed(seed)(hypothesis.given(case=cases_of(test))(body.example)))
            with contextlib.suppress(Over):
                run()
            counts[name] = [body.done, time.perf_counter() - start]
    return counts, shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--jax", default=sys.executable, metavar="PYTHON")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    with multiprocessing.get_context("spawn").Pool(JOBS) as pool:
        parts = pool.starmap(properties, [(options.seconds, seed) for seed in range(JOBS)])
    ours = 0.0
    for name in parts[0][0]:
        rate = sum(counts[name][0] / counts[name][1] for counts, _ in parts)
        ours += rate / len(parts[0][0])
        print(f"{name:14} {rate:8.0f} combinations/s in {JOBS} processes")
    # Widths as in the property of gradient sums: 1 to 5 features.
    shapes = [(n, batch, 1 + index % 5) for index, (n, batch) in enumerate(parts[0][1])]
    done = subprocess.run(
        [options.jax, "-c", JAX_SIDE],
        input=json.dumps([options.seconds, shapes]),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"no JAX in {options.jax}: {(done.stderr.strip() or '?').splitlines()[-1]}")
        return
    count, seconds, distinct, version = json.loads(done.stdout.splitlines()[-1])
    rate = count / seconds
    print(
        f"{'JAX ' + version:14} {rate:8.1f} combinations/s, {distinct} compiled shapes of {count}"
    )
    print(f"ours / JAX     {ours / rate:8.1f}")


if __name__ == "__main__":
    main()
