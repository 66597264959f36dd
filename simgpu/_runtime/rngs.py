"""What draws random numbers on simulated devices: CUDA's generator, or the CPU's. Without torch."""

from __future__ import annotations

RNGS = "cuda", "host"
"""CUDA's generator and kernels; or the CPU's, with other numbers on each device."""


def check_rng(rng: str) -> str:
    """Return one of `RNGS`; raises ValueError for anything else."""
    if not isinstance(rng, str) or rng not in RNGS:
        raise ValueError(f"rng must be one of {', '.join(map(repr, RNGS))}, got {rng!r}")
    return rng
