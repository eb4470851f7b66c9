"""Small worlds for the simulator's tests: deployments with pools that are easily full, and sessions by hand."""

from __future__ import annotations

import numpy as np

from kvmill.simulator.deployment import Deployment
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry
from kvmill.simulator.run import Scenario
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import Workload, assemble

TE = "te(proxy=assistant,delay=1,keep=0.2)"
SLOS = parse_slo(["ttft_p95=2", "tpot_p95=0.05"])


def deployment(pool_tokens: int | None = None, model: str = "llama-3.1-8b", gpu: str = "h100", **fields) -> Deployment:
    """A replica whose pool holds about `pool_tokens` tokens (the rest is given to activations)."""
    plain = Deployment(find_geometry(model), find_gpu(gpu), **fields)
    if pool_tokens is None:
        return plain
    spare = plain.cache_gib() - pool_tokens * plain.row_bytes() / 2**30
    return Deployment(find_geometry(model), find_gpu(gpu), activation_gib=plain.activation.gib + spare, **fields)


def sessions(
    count: int, seed: int = 0, *, turns: int = 8, tool: int = 400, out: int = 200, wait: float = 2.0, shared: int = 512
):
    """`count` sessions of about `turns` turns with log-normal lengths and waits."""
    rng = np.random.default_rng(seed)
    specs = []
    for _ in range(count):
        n = int(rng.integers(1, 2 * turns))
        tools = [int(v) for v in np.maximum(1, tool * np.exp(rng.standard_normal(n)))]
        outs = [int(v) for v in np.maximum(1, out * np.exp(rng.standard_normal(n)))]
        waits = tuple((wait * np.exp(rng.standard_normal(n))).tolist())
        specs.append(SessionSpec(assemble(1024, outs, tools), waits, shared=shared))
    return tuple(specs)


def closed(agents: int, seed: int = 0, **shape) -> Workload:
    """A closed workload of `agents` agents."""
    return Workload("test", sessions(40, seed, **shape), agents=agents)


def scenario(
    load: Workload, policy: str = "full", place: Deployment | None = None, turns: int = 600, **fields
) -> Scenario:
    """A short run."""
    return Scenario(load, policy, place or deployment(60_000), SLOS, turns=turns, **fields)
