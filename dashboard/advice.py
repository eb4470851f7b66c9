"""What to do next, from what the store holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

PLAN = "kvmill plan --workload long-agents --model qwen3.5-27b --gpu h200 --slo ttft_p95=2 --slo tpot_p95=0.05"


def next_steps(runs: Sequence[Mapping[str, Any]], done: Collection[str]) -> list[tuple[str, str]]:
    """Pairs of a sentence and a command. `runs` are rows of `queries.newest_runs`, newest first.

    `done` are the kinds of which the store has a complete run, however old.
    """
    if not runs:
        return [
            ("Nothing was run yet. See the whole thing on the bundled samples:", "kvmill demo --quick"),
            ("Or bring your own traces:", "kvmill traces ingest PATH\nkvmill replay"),
        ]
    steps = [
        (f"`{run['run']}` was interrupted. Go on where it stopped:", f"kvmill replay --resume {run['run']}")
        for run in runs
        if run["kind"] == "replay" and run["state"] in ("incomplete", "killed")
    ][:1]
    if "replay" not in done:
        steps.append(("No replay is complete, so no quality is known. Measure it:", "kvmill replay --traces samples"))
    if "plan" not in done:
        steps.append(("Size a fleet with what was measured:", f"{PLAN} \\\n  --policy full --policy 'te(keep=0.2)'"))
    if "replay" in done and "plan" in done:
        steps.append(("See which tokens a policy kept of one trajectory:", "kvmill inspect RUN TRAJECTORY"))
    return steps
