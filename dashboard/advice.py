"""What to do next, from what the store holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PLAN = "kvmill plan --workload long-agents --model qwen3.5-27b --gpu h200 --slo ttft_p95=2 --slo tpot_p95=0.05"
DEMO = "kvmill demo --quick"


@dataclass(frozen=True, slots=True)
class Step:
    """A sentence, the command that does it, and the page on which it can be done, None where there is none."""

    text: str
    command: str
    page: str | None = None


def next_steps(runs: Sequence[Mapping[str, Any]], done: Collection[str]) -> list[Step]:
    """What to do next, the most useful first. `runs` are rows of `queries.newest_runs`, newest first.

    `done` are the kinds of which the store has a complete run, however old.
    """
    if not runs:
        return [
            Step("Nothing was run yet. See the whole thing on the bundled samples:", DEMO),
            Step("Or bring your own traces:", "kvmill traces ingest PATH\nkvmill replay", "traces"),
        ]
    steps = [
        Step(
            f"`{run['run']}` was interrupted. Go on where it stopped:", f"kvmill replay --resume {run['run']}", "replay"
        )
        for run in runs
        if run["kind"] == "replay" and run["state"] in ("incomplete", "killed")
    ][:1]
    if "replay" not in done:
        text = "No replay is complete, so no quality is known. Measure it:"
        steps.append(Step(text, f"kvmill replay --traces {'last' if 'ingest' in done else 'samples'}", "replay"))
    if "plan" not in done:
        command = f"{PLAN} \\\n  --policy full --policy 'te(keep=0.2)'"
        steps.append(Step("Size a fleet with what was measured:", command, "capacity"))
    if "replay" in done and "plan" in done:
        text = "See which tokens a policy kept of one trajectory:"
        steps.append(Step(text, "kvmill inspect RUN TRAJECTORY", "inspector"))
    return steps
