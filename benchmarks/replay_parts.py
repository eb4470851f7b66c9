"""The four contests of `kvmill bench replay`, each a function that returns its rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..replay import model as stack
from ..replay.engine import BranchRun, replay
from ..replay.forward import Forward
from ..replay.lockstep import Lockstep
from ..replay.metrics import scored_rows
from ..replay.model import LoadedModel, load_model
from ..replay.policies.full import Full
from ..replay.policies.registry import parse_policies
from ..replay.sampling import Sampler
from ..replay.statistics import difference
from ..replay.stepwise import Asking
from ..traces import samples
from ..traces.tokens import ProbeTokens, TokenTrajectory, tokenize, tokenize_probe
from .profiled import profiled

Row = dict[str, Any]

SIXTEEN = (
    "full",
    "truncate(keep=0.2)",
    "sink_window(keep=0.2)",
    "random(keep=0.2)",
    "attention(keep=0.2)",
    "hybrid(keep=0.2)",
    "te(proxy=boundary,keep=0.2)",
    "te(proxy=assistant,delay=1,keep=0.1)",
    "te(proxy=assistant,delay=1,keep=0.2)",
    "te(proxy=assistant,delay=1,keep=0.4)",
    "te(proxy=assistant,delay=3,keep=0.2)",
    "am(proxy=assistant,delay=1,keep=0.2)",
    "snapkv(keep=0.2)",
    "expected_attention(keep=0.2)",
    "keydiff(keep=0.2)",
    "knorm(keep=0.2)",
)
COMPACTED = "te(proxy=assistant,delay=1,keep=0.2)"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: turns of a trajectory, trajectories of the comparison of dtypes, tokens, rounds."""

    turns: int = 6
    trajectories: int = 4
    context: int = 4096
    decoded: int = 32
    action_tokens: int = 32
    rounds: int = 3


TOY = Size(turns=2, trajectories=2, context=300, decoded=4, action_tokens=3, rounds=1)


def texts(model: LoadedModel, size: Size, count: int = 1) -> list[tuple[TokenTrajectory, list[ProbeTokens]]]:
    """The first turns of bundled trajectories, families in turn, and the probes about them."""
    families: dict[str, list[Any]] = {}
    for run in samples.load():
        families.setdefault(run.family, []).append(run)
    in_turn = [run for group in zip(*families.values(), strict=False) for run in group]
    out = []
    for run in in_turn[:count]:
        cut = replace(run, turns=run.turns[: size.turns], probes=())
        probes = [probe for probe in run.probes if probe.fact_turn < size.turns]
        out.append((tokenize(cut, model.tokenizer), [tokenize_probe(probe, model.tokenizer) for probe in probes]))
    return out


def lockstep(model: LoadedModel, size: Size, policies: Sequence[str] = SIXTEEN) -> list[Row]:
    """(a) Sixteen policies together against sixteen runs of one policy, in both modes, on one trajectory."""
    forward, chosen = Forward(model), parse_policies(list(policies))
    ((text, probes),) = texts(model, size)
    rows: list[Row] = []
    for mode, target in (("teacher", 0.7), ("stepwise", 0.4)):
        asking = Asking.of(model, size.action_tokens, 0.0) if mode == "stepwise" else None
        _ok(replay(forward, text, chosen[:2], probes, asking=asking))  # what is slow only once
        with profiled() as together:
            start = time.perf_counter()
            _ok(replay(forward, text, chosen, probes, asking=asking))
            together_s = time.perf_counter() - start
        with profiled() as alone:
            start = time.perf_counter()
            for policy in chosen:
                _ok(replay(forward, text, [policy], probes, asking=asking))
            alone_s = time.perf_counter() - start
        rows.append(
            {
                "part": "a",
                "what": f"{len(chosen)} policies in lockstep, time over that of {len(chosen)} single runs, {mode}",
                "value": together_s / alone_s,
                "target": target,
                "met": together_s / alone_s <= target,
                "seconds": together_s,
                "against_s": alone_s,
                "rounds": 1,
                "tokens": text.tokens,
                "turns": size.turns,
                "profile": together.shares(),
                "profile_s": together.seconds,
                "against_profile_s": alone.seconds,
            }
        )
    return rows


def bare_forward(model: LoadedModel, size: Size) -> list[Row]:
    """(b) A replay of `full` against transformers' own forward over the same chunks, with the same logits.

    The bare pass computes the logits that the replay scores, no others: asking for all of them would flatter us.
    """
    other = _again(model)
    forward = Forward(model)
    ((text, _),) = texts(model, size)
    pieces = _pieces(forward, text)

    @torch.inference_mode()
    def bare() -> None:
        cache, at = stack.transformers.DynamicCache(), 0
        for ids, wanted in pieces:
            tokens = torch.tensor([ids], device=model.device)
            positions = torch.arange(at, at + len(ids), device=model.device)[None]
            hidden = stack.run_layers(other, tokens, positions, cache)
            if wanted:
                stack.head(other, hidden[0, wanted.start : wanted.stop]).float().log_softmax(-1)
            at += len(ids)

    def ours() -> None:
        _ok(replay(forward, text, [Full()]))

    bare_s, ours_s = _in_turn([bare, ours], size.rounds)
    with profiled() as profile:
        ours()
    return [
        {
            "part": "b",
            "what": "a replay of full, time over that of a bare transformers forward (sdpa) over the same chunks",
            "value": ours_s / bare_s,
            "target": 1.1,
            "met": ours_s / bare_s <= 1.1,
            "seconds": ours_s,
            "against_s": bare_s,
            "rounds": size.rounds,
            "tokens": text.tokens,
            "turns": size.turns,
            "profile": profile.shares(),
        }
    ]


def decode(model: LoadedModel, size: Size) -> list[Row]:
    """(c) Greedy decoding on a long cache against `generate` with its default cache. Both hold the same random rows,
    so that they must say the same.
    """
    other, forward = _again(model), Forward(model)
    other.generation_config.eos_token_id = None  # neither stops early
    shape, draw = model.shape(), torch.Generator().manual_seed(0)
    held = torch.randn(2, shape.layers, shape.kv_heads, size.context, shape.head_dim, generator=draw)
    held = held.to(model.dtype).to(model.device)
    first, said = 1, {}

    def cached() -> Any:
        cache = stack.transformers.DynamicCache()
        for layer in range(shape.layers):
            cache.update(held[0, layer : layer + 1], held[1, layer : layer + 1], layer)
        return cache

    @torch.inference_mode()
    def theirs() -> float:
        cache = cached()
        ids = torch.full((1, size.context + 1), first, device=model.device)
        start = time.perf_counter()
        found = other.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=size.decoded,
            do_sample=False,
            **{stack.cache_name(type(other)): cache},
        )
        seconds = time.perf_counter() - start
        said["theirs"] = found[0, size.context + 1 :].tolist()
        return seconds

    def ours() -> float:
        lane, pick, ids = forward.new_lane(), Sampler(0.0, 1.0, 0), [first]
        for layer in range(shape.layers):
            lane.cache.append(layer, held[0, layer], held[1, layer])
        lane.position = size.context
        start = time.perf_counter()
        for _ in range(size.decoded):
            last = forward.feed([lane], ids[-1:])[0, -1]
            ids.append(pick(forward.log_probabilities(last)))
        seconds = time.perf_counter() - start
        said["ours"] = ids[1:]
        return seconds

    theirs(), ours()
    times = [(theirs(), ours()) for _ in range(size.rounds)]
    theirs_s, ours_s = (statistics.median(column) for column in zip(*times, strict=True))
    with profiled() as profile:
        ours()
    return [
        {
            "part": "c",
            "what": f"decoding {size.decoded} tokens at {size.context:,} of context, generate's time over ours",
            "value": theirs_s / ours_s,
            "target": 3.0,
            "met": theirs_s / ours_s >= 3,
            "seconds": ours_s / size.decoded,
            "against_s": theirs_s / size.decoded,
            "rounds": size.rounds,
            "tokens": size.context,
            "same_tokens": said["ours"] == said["theirs"],
            "profile": profile.shares(),
        }
    ]


def dtypes(model: LoadedModel, size: Size) -> list[Row]:
    """(d) The same replays in bfloat16 and in float32: seconds, and the paired difference of the mean NLL (nats)."""
    policies = parse_policies([COMPACTED])
    seconds: dict[str, float] = {}
    nll: dict[str, list[list[float]]] = {}
    for name in ("float32", "bfloat16"):
        loaded = load_model(model.name, device=str(model.device), dtype=name, threads=model.threads)
        forward = Forward(loaded)
        cut = texts(loaded, size, size.trajectories)
        _ok(replay(forward, cut[0][0], policies[:1]))  # what is slow only once
        start = time.perf_counter()
        runs = [_ok(replay(forward, text, policies)) for text, _ in cut]
        seconds[name] = time.perf_counter() - start
        nll[name] = [[_mean_nll(branch) for branch in run] for run in runs]
    rows: list[Row] = []
    for number, policy in enumerate(policies):
        low, high = ([run[number] for run in nll[name]] for name in ("bfloat16", "float32"))
        found = difference(low, high)
        assert found.value is not None
        rows.append(
            {
                "part": "d",
                "what": f"bfloat16 minus float32, mean NLL of {policy}, nats",
                "value": abs(found.value),
                "target": 0.01,
                "met": abs(found.value) < 0.01,
                "seconds": seconds["bfloat16"],
                "against_s": seconds["float32"],
                "rounds": 1,
                "n": found.n,
                "turns": size.turns,
                "difference": found.value,
                "difference_low": found.low,
                "difference_high": found.high,
                "largest": max(abs(one - two) for one, two in zip(low, high, strict=True)),
                "dtype": "bfloat16 against float32",
            }
        )
    return rows


PARTS: dict[str, Callable[[LoadedModel, Size], list[Row]]] = {
    "a": lockstep,
    "b": bare_forward,
    "c": decode,
    "d": dtypes,
}


def _pieces(forward: Forward, text: TokenTrajectory) -> list[tuple[Sequence[int], range]]:
    """The chunks that a replay of `full` feeds, each with the rows of it whose logits are scored."""
    step = Lockstep(forward, text, [Full()], seed=0)
    chunks = [chunk for segment in text.segments for chunk in step.chunks(segment)]
    out = []
    for chunk in chunks:
        wanted = scored_rows(chunk.segment, chunk.begin, chunk.end)
        ids = chunk.segment.ids[chunk.begin : chunk.end]
        out.append((ids, range(wanted.start - chunk.begin, wanted.stop - chunk.begin) if wanted else range(0)))
    return out


def _again(model: LoadedModel) -> Any:
    """The same model as transformers loads it, with its own attention."""
    return load_model(model.name, device=str(model.device), dtype=model.dtype_name, threads=model.threads).module


def _in_turn(forms: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Median seconds of each, taken in turn after one call to warm up."""
    for form in forms:
        form()
    spans: list[list[float]] = [[] for _ in forms]
    for _ in range(rounds):
        for form, found in zip(forms, spans, strict=True):
            start = time.perf_counter()
            form()
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in spans]


def _mean_nll(branch: BranchRun) -> float:
    later = branch.turns[1:]
    return sum(turn.quality.nll for turn in later) / sum(turn.quality.tokens for turn in later)


def _ok(runs: list[BranchRun]) -> list[BranchRun]:
    """A time counts only if every policy came to the end."""
    if failed := [f"{run.policy}: {run.error}" for run in runs if run.error]:
        raise RuntimeError("; ".join(failed))
    return runs
