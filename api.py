"""The verbs of the command line as functions, returning what it prints with `--json`. Imported on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .replay.model import LoadedModel
    from .replay.policies.base import Policy
    from .replay.session import Session
    from .traces.store import Store


def _open(store: Store | str | Path | None) -> Store:
    from .traces.store import Store

    return store if isinstance(store, Store) else Store.open(store)


def read_traces(
    *paths: str | Path,
    format: str = "auto",
    redact: bool = True,
    strict: bool = False,
    store: Store | str | Path | None = None,
) -> dict[str, Any]:
    """Read files, folders and globs into the store, as `kvmill traces ingest`.

    Returns `accepted`, `rejected`, `duplicates`, `reject_file`, `losses`, `redacted` and the ingest's `run`.
    InputError if some input had no usable record, or any was refused under `strict`; UserError for a missing path.
    """
    from dataclasses import asdict

    from .traces.ingest import ingest, require_accepted

    report = ingest(_open(store), paths, format=format, redact=redact)
    require_accepted(report, strict)
    return asdict(report)


def run_replay(
    traces: str | None = None,
    *,
    model: str | None = None,
    policies: Sequence[str] | None = None,
    measure: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    resume: str | None = None,
    equal_size: str | None = None,
    equal_by: str | None = None,
    probes: str | None = None,
    mode: str | None = None,
    temperature: float | None = None,
    max_action_tokens: int | None = None,
    actions: str | None = None,
    long: str | None = None,
    include_compacted: bool | None = None,
    sweep: Sequence[str] | None = None,
    explain: bool | None = None,
    seed_turns: int | None = None,
    max_turns: int | None = None,
    executor: str | None = None,
    workers: int | None = None,
    gpus_per_worker: int | None = None,
    ray_address: str | None = None,
    until_decided: bool | None = None,
    max_loss: float | None = None,
    confidence: float | None = None,
    batch: int | None = None,
    max_trajectories: int | None = None,
    progress: bool = False,
    store: Store | str | Path | None = None,
) -> dict[str, Any]:
    """Replay trajectories under policies, as `kvmill replay`; returns its `results`. Needs the model stack (torch).

    `traces`: samples, samples-more, stress, last (default), all, an id, a path or glob, or `source=…,family=…`. Cells
    that failed are counted in each policy's `status`, never raised. With `until_decided` the answer has the
    keys of `recommend` too; not `decided` is no error here. UserError on unknown names or nothing to replay.
    """
    # First of all, while the arguments are the only names there are: the settings of `replay.wanted.Wanted`.
    given = {name: value for name, value in locals().items() if name not in ("store", "progress")}
    from .replay.start import replay_named
    from .replay.until_decided import outcome

    opened = _open(store)
    run = replay_named(opened, progress=progress, **given)
    return outcome(opened, run)


def results(run: str | None = None, *, by: str = "policy", store: Store | str | Path | None = None) -> dict[str, Any]:
    """Results of a replay run (the newest complete one), as `kvmill results`. UserError if there is none."""
    from .replay.results import summary

    return summary(_open(store), run, by)


def recommend(
    run: str | None = None,
    *,
    max_loss: float | None = None,
    max_latency: float = 0.10,
    confidence: float | None = None,
    max_family_loss: float | None = None,
    store: Store | str | Path | None = None,
) -> dict[str, Any]:
    """The policy with the smallest peak KV within the limits, as `kvmill recommend`; `policy` is None if undecided.

    All limits are shares: of full's accuracy (0.05, or what the run was to decide by), of its median turn, of one
    family's accuracy. UserError without a run.
    """
    from .replay.recommend import recommend as decide

    return decide(
        _open(store),
        run,
        max_loss=max_loss,
        max_latency=max_latency,
        confidence=confidence,
        max_family_loss=max_family_loss,
    )


def simulate(
    workload: str,
    model: str,
    gpu: str,
    gpus: int,
    *,
    policy: str | None = None,
    keep: float | None = None,
    slo: Sequence[str] | Mapping[str, float] = ("ttft_p95=2", "tpot_p95=0.05"),
    store: Store | str | Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """One fleet of `gpus` GPUs under one policy, as `kvmill simulate`; `options` are its other flags: `agents=50`,
    `router="round-robin"`, `series=True`, …

    Times in seconds, shares in [0, 1]. UserError on names or sizes that cannot be.
    """
    from .simulator.answers import simulate as run

    return run(workload, model, gpu, gpus, policy=policy, keep=keep, slo=slo, store=_open(store), **options)


def plan(
    workload: str,
    model: str,
    gpu: str,
    *,
    policies: Sequence[str] | None = None,
    slo: Sequence[str] | Mapping[str, float],
    store: Store | str | Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The fewest GPUs that keep the promises under every policy, as `kvmill plan`; `options` are its other flags:
    `retention="offload"`, `attribute=True`, `sweep=["keep=0.1,0.2", "gpu=h100,h200"]` `max_load=True, gpus=8`, …

    `slo`: `{"ttft_p95": 2, "tpot_p95": 0.05}` in seconds. No feasible fleet is an answer too: that policy's row has
    `feasible` False and names what binds. UserError on names or sizes that cannot be.
    """
    from .simulator.answers import plan_named

    return plan_named(workload, model, gpu, slo=slo, policies=policies, store=_open(store), **options)


def validate(*, only: str | None = None, data: str | Path | None = None) -> dict[str, Any]:
    """Check the simulator, as `kvmill validate`: `passed`, `checks`, `skipped`. Takes minutes.

    `only`: exact, interval or reality; `data`: a folder of recorded runs. UserError on anything else.
    """
    from .simulator.validate import validate as run

    return run(only=only, data=data)


def select(
    model: str | LoadedModel,
    token_ids: Sequence[int],
    policy: str | Policy,
    segments: Sequence[tuple[str, int]] | None = None,
    future_ids: Sequence[int] | None = None,
) -> dict[int, list[NDArray[Any]]]:
    """What a policy keeps of one prompt: {layer: one ascending index array per KV head}. Needs the model stack (torch).

    `model`: a name or folder (loaded in float32) or a loaded model; `policy`: text or policy, protecting nothing unless
    it says so.
    `segments`: (kind, length) in order, the whole prompt being one segment without them; `future_ids`: what follows the
    prompt, where the proxy is `assistant` or `tool`. UserError on anything that does not fit together.
    """
    from .replay.selecting import select as run

    return run(model, token_ids, policy, segments, future_ids)


def session(
    model: str | LoadedModel,
    policy: str | Policy,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
) -> Session:
    """An agent loop of your own on a compacted cache. Needs the model stack (torch).

    ```python
    run = kvmill.session("smollm2-135m", "te(proxy=assistant,delay=1,keep=0.2)")
    run.append("system", "You are a search agent.")
    run.append("user", "Who keeps the Falcon file?")
    for found in ("Search result: Ann Lee keeps the Falcon file.", "Search result: Ann Lee works in room 12."):
        print("agent:", run.generate(max_tokens=40))
        run.append("tool", found)
    run.append("user", "Where is she?")
    print("agent:", run.generate(max_tokens=40))
    print(f"{run.rows} of {run.tokens} tokens held; layer 0, head 0 keeps {run.kept()[0][0].tolist()}")
    ```

    `model`: a name as `kvmill replay` takes, or a loaded model; `policy`: text or policy; `tools`: schemas as chat APIs
    take them; `device`, `dtype`, `threads`: for a model given by name. See `Session` for the methods. UserError on
    anything that does not exist.
    """
    from .replay.session import session as run

    return run(model, policy, tools=tools, seed=seed, device=device, dtype=dtype, threads=threads)
