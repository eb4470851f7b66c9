"""The flags that `simulate` and `plan` share: the load, and how a replica is run. One place for both.

typer reads flags from a command's signature. `sharing` adds those of the functions below, which are nothing but lists
of flags; the command gets their values as keywords, under the names that `given` takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., Any])


def load_flags(
    agents: Annotated[int | None, typer.Option(help="Closed workload: agents at work all the time.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open workload: sessions per second.")] = None,
    burstiness: Annotated[
        float | None, typer.Option(help="Open workload: coefficient of variation between arrivals, 1 is Poisson.")
    ] = None,
    scale_load: Annotated[
        float | None, typer.Option(help="Recorded arrivals: so many times the sessions per second.")
    ] = None,
    tool_wait: Annotated[str | None, typer.Option(help="recorded, or lognormal:P50,P90 in seconds.")] = None,
    scale_tokens: Annotated[float | None, typer.Option(help="Factor on all segments but the prefix.")] = None,
    prefix_tokens: Annotated[
        int | None, typer.Option(help="Request logs: how much of the first input is the prefix.")
    ] = None,
) -> None:
    """What fills a workload's gaps (`Fill`)."""


def machine_flags(
    tp: Annotated[str, typer.Option(help="Tensor-parallel size, or auto: the smallest that fits.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Weights and matrix products: bf16 or fp8.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="KV cache: bf16 or fp8.")] = "bf16",
    utilisation: Annotated[float, typer.Option(help="Share of usable memory.")] = 0.9,
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens at which a session ends (the model's window).", min=1)
    ] = None,
    token_budget: Annotated[int, typer.Option(help="Tokens that one step may feed.", min=1)] = 8192,
    max_sequences: Annotated[int, typer.Option(help="Requests that one replica runs at once.", min=1)] = 256,
    retention: Annotated[
        str, typer.Option(help="KV of waiting agents: lru (until evicted), ttl:SECONDS, or offload (to host memory).")
    ] = "lru",
    host_gib: Annotated[
        float | None, typer.Option(help="Host memory per GPU that offloaded KV may fill (128).", min=0)
    ] = None,
    preemption: Annotated[
        str, typer.Option(help="Of a running request: recompute, or swap (to the host and back).")
    ] = "recompute",
    compaction: Annotated[
        str, typer.Option(help="inline (in the step), or beside (on a stream of its own).")
    ] = "inline",
    coarse_tokens: Annotated[
        int, typer.Option(help="Caches are found again in multiples of so many tokens only; 0: per block.", min=0)
    ] = 0,
    router: Annotated[
        str, typer.Option(help="affinity, prefix-aware, least-loaded or round-robin: which replica a turn goes to.")
    ] = "affinity",
    fail: Annotated[
        float | None, typer.Option(help="One replica is out for so many seconds, from the middle of the run on.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Constants and error that `kvmill calibrate` wrote for this GPU.")
    ] = None,
) -> None:
    """How one replica is run (`Deployment`), and the fleet around it."""


def sharing(*groups: Callable[..., None]) -> Callable[[Command], Command]:
    """Give a command the flags of `groups` beside its own."""

    def widened(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [p for group in groups for p in inspect.signature(group, eval_str=True).parameters.values()]
        command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*own, *more)}
        return command

    return widened
