"""Which policy keeps how much, at which size: every policy on the bundled samples, and the page that says so.

`kvmill bench policies` replays all samples (`--limit 24` takes 12 of each family) with the small model: every policy
at keep 0.2, five of them at 0.1 and 0.4, and then all that have a ratio at equal size. It can be stopped at any time:
finished trajectories are in the store, and the same command goes on. `--write` renews the page and the figures.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvmill.console import note, table
from kvmill.replay.policies.registry import describe, parse_policies
from kvmill.replay.results import summary
from kvmill.replay.start import replay_named
from kvmill.replay.statistics import difference
from kvmill.traces.store import Store

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "policies.md"
FIGURES = ROOT / "benchmarks" / "results" / "policies.json"
AUTHORS = ROOT / "benchmarks" / "results" / "peers.json"  # of `kvmill bench peers`

AT_A_FIFTH = (
    "full",
    "truncate(keep=0.2)",
    "drop_tool_outputs",
    "sink_window(keep=0.2)",
    "sink_window(keep=0.2,renumber=true)",
    "random(keep=0.2)",
    "attention(keep=0.2)",
    "attention(keep=0.2,locality=normalised)",
    "merge(keep=0.2)",
    "hybrid(keep=0.2)",
    "te(proxy=boundary,keep=0.2)",
    "te(proxy=repeat,keep=0.2)",
    "te(proxy=assistant,delay=1,keep=0.2)",
    "te(proxy=assistant,delay=3,keep=0.2)",
    "te(proxy=assistant,delay=5,keep=0.2)",
    "te(proxy=assistant,delay=1,keep=0.2,normaliser=global)",
    "te(proxy=assistant,delay=1,keep=0.2,granularity=token)",
    "te(proxy=assistant+boundary,delay=1,keep=0.2)",
    "te(proxy=assistant+boundary+tool,delay=1,keep=0.2)",
    "am(proxy=repeat,keep=0.2)",
    "am(proxy=assistant,delay=1,keep=0.2)",
    "am(proxy=assistant,delay=3,keep=0.2)",
    "snapkv(keep=0.2)",
    "expected_attention(keep=0.2)",
    "keydiff(keep=0.2)",
    "knorm(keep=0.2)",
    "kvzip(keep=0.2)",
    "rkv(keep=0.2)",
    "adaptive(keep=0.2)",
)
SWEPT = ("te(proxy=assistant,delay=1,keep={})", "am(proxy=assistant,delay=1,keep={})", "attention(keep={})")
SWEPT += ("merge(keep={})", "hybrid(keep={})", "adaptive(keep={})")
RATIOS = ("0.1", "0.2", "0.4")
REFERENCE = "te(proxy=assistant,delay=1,keep=0.2)"
AT_EQUAL_SIZE = (
    "full",
    "truncate",
    "sink_window",
    "random",
    "attention",
    "hybrid",
    "te(proxy=boundary)",
    REFERENCE,
    "te(proxy=assistant,delay=1,normaliser=global)",
    "te(proxy=assistant,delay=1,keep_assistant=1)",
    "am(proxy=assistant,delay=1)",
    "snapkv",
    "expected_attention",
    "adaptive",
)
EQUAL_BY = "mean"


def everything() -> list[str]:
    """The policies of the main run: at a fifth, then the others of the sweep."""
    swept = [policy.format(ratio) for policy in SWEPT for ratio in RATIOS]
    return list(dict.fromkeys([*AT_A_FIFTH, *swept]))


def parts() -> dict[str, tuple[list[str], dict[str, str]]]:
    """The runs by name: their policies, and what else they are told.

    `merge` looks every 50 tokens, and lockstep cuts everybody's chunks there: it runs by itself.
    """
    names = everything()
    return {
        "main": ([name for name in names if not name.startswith("merge")], {}),
        "merge": ([name for name in names if name.startswith("merge")], {}),
        "equal": (list(AT_EQUAL_SIZE), {"equal_size": REFERENCE, "equal_by": EQUAL_BY}),
    }


def measured(store: Store, model: str, policies: Sequence[str], limit: int | None, **more: Any) -> dict[str, Any]:
    """The results of a complete replay of the samples; begins one, or goes on with the one that was stopped."""
    spelled = [str(policy) for policy in parse_policies(list(policies))]
    asked = {"model": model, "traces": "samples", "limit": limit, "asked": spelled, "equal_size": None} | more
    runs = [info for info in store.runs("replay") if all(info.config.get(k) == v for k, v in asked.items())]
    done = next((info for info in runs if info.state == "complete"), None)
    stopped = next((info for info in runs if info.state != "complete"), None)
    if done is None and stopped is not None:
        note(f"going on with run {stopped.run_id}")
    run = (
        done.run_id
        if done
        else replay_named(
            store,
            traces=None if stopped else "samples",
            model=model,
            policies=None if stopped else spelled,
            limit=None if stopped else limit,
            resume=stopped.run_id if stopped else None,
            **({} if stopped else more),
        )
    )
    return summary(store, run)


def figures(main: Mapping[str, Any], equal: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """What the page is made of, with machine and versions."""
    info = store.info(main["run"])
    return {
        "machine": {"processor": _processor(), "threads": main["threads"], "python": platform.python_version()},
        "versions": info.versions,
        "revision": info.git_revision,
        "model": main["model"],
        "dtype": main["dtype"],
        "seed": main["seed"],
        "reference": REFERENCE,
        "equal_by": EQUAL_BY,
        "policies": main["policies"],
        "equal_size": equal["policies"],
        "paired": paired(store, equal),
    }


def paired(store: Store, equal: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`adaptive` minus every `te` of the equal-size run, paired by trajectory, with 95 % intervals."""
    names = [entry["policy"] for entry in equal["policies"] if entry["n"]]
    mine = next((name for name in names if name.startswith("adaptive")), None)
    out: list[dict[str, Any]] = []
    for other in [name for name in names if name.startswith("te(")] if mine else []:
        row: dict[str, Any] = {"policy": mine, "other": other}
        for figure in ("answer_accuracy", "answer_ll"):
            rows = store.query(
                f"SELECT one.{figure} AS one, two.{figure} AS two FROM cells one JOIN cells two USING (run_id, "
                "trajectory_id, measure) WHERE run_id = $1 AND measure = 'quality' AND one.policy = $2 "
                f"AND two.policy = $3 AND one.{figure} IS NOT NULL AND two.{figure} IS NOT NULL ORDER BY trajectory_id",
                [equal["run"], mine, other],
            ).to_pylist()
            found = difference([r["one"] for r in rows], [r["two"] for r in rows])
            row |= {"n": found.n, figure: found.value, f"{figure}_low": found.low, f"{figure}_high": found.high}
        out.append(row)
    return out


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench policies", description=__doc__)
    parser.add_argument("--limit", type=int, help="trajectories, families in turn (all 80)")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--store", help="the store of the runs (KVMILL_STORE, else ./kvmill-store)")
    parser.add_argument("--threads", type=int, help="torch threads (the physical cores)")
    parser.add_argument("--part", choices=list(parts()), help="measure one part only, in a process of its own")
    parser.add_argument("--write", action="store_true", help="renew docs/policies.md and benchmarks/results")
    parser.add_argument("--from-figures", action="store_true", help="replay nothing: write the page anew")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    asked = parser.parse_args()
    if asked.from_figures:
        found = json.loads(FIGURES.read_text())
    else:
        store = Store.open(asked.store)
        fixed = {"threads": asked.threads} if asked.threads else {}
        done = {
            part: measured(store, asked.model, policies, asked.limit, **fixed, **more)
            for part, (policies, more) in parts().items()
            if asked.part in (None, part)
        }
        if asked.part is not None:
            print(_short(done[asked.part]["policies"]))
            return
        done["main"]["policies"] += [e for e in done["merge"]["policies"] if e["policy"] != "full"]
        found = figures(done["main"], done["equal"], store)
    if asked.write:
        FIGURES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if asked.write or asked.from_figures:
        from kvmill.benchmarks.pages.policies import page

        authors = json.loads(AUTHORS.read_text()) if AUTHORS.is_file() else None
        PAGE.write_text(page(found, describe(), SWEPT, RATIOS, authors))
    if asked.json:
        print(json.dumps(found, ensure_ascii=False))
    elif not asked.from_figures:
        print(_short(found["policies"]))
        print(f"\nAt equal size ({EQUAL_BY} rows of {REFERENCE}):\n")
        print(_short(found["equal_size"]))


def _short(entries: Sequence[Mapping[str, Any]]) -> str:
    columns = {"policy": "policy", "n": "n", "accuracy": "answer accuracy", "ll": "answer LL", "rows": "mean KV tokens"}
    return table(
        [
            {
                "policy": entry["policy"],
                "n": entry["n"],
                "accuracy": "–" if entry["answer_accuracy"] is None else f"{entry['answer_accuracy']:.1%}",
                "ll": "–" if entry["answer_ll"] is None else f"{entry['answer_ll']:.2f}",
                "rows": "–" if entry["kv_tokens_mean"] is None else f"{entry['kv_tokens_mean']:.0f}",
            }
            for entry in entries
        ],
        columns,
    )


if __name__ == "__main__":
    main()
