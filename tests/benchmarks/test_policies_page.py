"""docs/policies.md says what the figures say, and `measured` goes on with a run that was stopped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny

from kvmill.benchmarks import policies
from kvmill.benchmarks.pages.policies import page
from kvmill.replay import fanout
from kvmill.replay.policies.registry import describe
from kvmill.traces import samples
from kvmill.traces.store import Store

SOON = "te(proxy=boundary,keep=0.2)"
LATE = policies.REFERENCE
EQUAL_TE = "te(proxy=boundary,keep=0.31)"
EQUAL_OURS = "adaptive(keep=0.27)"


def entry(policy: str, accuracy: float | None = 0.5, against: tuple[float, float, float] | None = (-0.2, -0.3, -0.1)):
    """One policy of 8 trajectories; `against` is the paired difference to full with its interval."""
    value, low, high = against or (None, None, None)
    known = accuracy is not None
    return {
        "policy": policy,
        "n": 8 if known else 0,
        "n_probes": 64,
        "answer_accuracy": accuracy,
        "answer_accuracy_low": accuracy - 0.05 if known else None,
        "answer_accuracy_high": accuracy + 0.05 if known else None,
        "difference": value,
        "difference_low": low,
        "difference_high": high,
        "answer_ll": -3.25 if known else None,
        **dict.fromkeys(("delta_nll", "delta_nll_low", "delta_nll_high", "kl"), 0.125 if known else None),
        "top1_agreement": 0.9 if known else None,
        "kv_tokens_mean": 1234.4 if known else None,
        "kv_tokens_peak": 2345.4 if known else None,
        "compaction_flops": 2.5e9 if known else None,
        "reprefill_tokens": 7.0 if known else None,
        "copied_tokens": 5.0 if known else None,
        "status": {"ok": 8 if known else 0, "failed": 0 if known else 8},
        "error": None if known else "ValueError: planted",
    }


def figures(**changed: Any) -> dict[str, Any]:
    """Every policy of the benchmark, all alike but those `changed` (main=…, equal=…: by policy)."""
    main = {name: entry(name) for name in policies.everything()} | {"full": entry("full", 0.7, None)}
    equal = {"full": entry("full", 0.7, None), EQUAL_TE: entry(EQUAL_TE), EQUAL_OURS: entry(EQUAL_OURS)}
    return {
        "machine": {"processor": "A processor", "threads": 2, "python": "3.11"},
        "versions": {"torch": "2.9", "transformers": "5.17"},
        "model": "smollm2-135m",
        "dtype": "float32",
        "seed": 0,
        "reference": LATE,
        "equal_by": "mean",
        "policies": [*(main | changed.get("main", {})).values()],
        "equal_size": [*(equal | changed.get("equal", {})).values()],
        "paired": changed.get("paired", []),
    }


def text(authors: dict[str, Any] | None = None, **changed: Any) -> str:
    return page(figures(**changed), describe(), policies.SWEPT, policies.RATIOS, authors)


def row_of(page: str, policy: str, heading: str) -> list[str]:
    """The cells of a policy's row in the table under a heading."""
    part = page.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| `{policy}` |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def finding(page: str, start: str) -> str:
    part = page.partition("\n## What came out\n")[2].partition("\n## ")[0]
    (line,) = [line for line in part.splitlines() if line.startswith(f"- {start}")]
    return line


@pytest.mark.parametrize(
    ("against", "said"),
    [
        ((-0.2, -0.3, -0.1), "-20.0 points against full (-30.0 to -10.0): a loss"),
        ((0.2, 0.1, 0.3), "+20.0 points against full (+10.0 to +30.0): a gain"),
        ((-0.1, -0.3, 0.1), "-10.0 points against full (-30.0 to +10.0): not distinguishable from none"),
    ],
)
def test_a_difference_is_called_what_its_interval_says(against: tuple[float, float, float], said: str) -> None:
    for policy, start in ((SOON, "Compacting a turn at once"), (LATE, "Waiting one turn")):
        written = text(main={policy: entry(policy, 0.5, against)})
        assert finding(written, start).endswith(f"50.0%, {said}.")


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.01, 0.09, "better"), (-0.09, -0.01, "worse"), (-0.02, 0.08, "not distinguishable")]
)
def test_ours_against_the_best_fixed_one_is_what_their_paired_difference_says(
    low: float, high: float, said: str
) -> None:
    pair = {"policy": EQUAL_OURS, "other": EQUAL_TE, "n": 8}
    pair |= {"answer_accuracy": (low + high) / 2, "answer_accuracy_low": low, "answer_accuracy_high": high}
    pair |= {"answer_ll": 0.25, "answer_ll_low": 0.125, "answer_ll_high": 0.5}
    line = finding(text(paired=[pair]), f"`{EQUAL_OURS}` against")
    assert f"{50 * (low + high):+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}, paired over 8" in line
    assert line.endswith(f"{said} by answer accuracy.")


def test_without_a_pair_nothing_is_said_of_ours() -> None:
    assert finding(text(), f"`{EQUAL_OURS}` against").endswith("too few trajectories for an interval.")


def test_the_order_at_equal_size_is_that_of_the_figures() -> None:
    line = finding(text(equal={"random(keep=0.4)": entry("random(keep=0.4)", 0.3)}), "At equal size")
    assert re.findall(r"`([^`]+)` ([\d.]+)%", line) == [
        (EQUAL_TE, "50.0"),
        (EQUAL_OURS, "50.0"),
        ("random(keep=0.4)", "30.0"),
        ("random(keep=0.4)", "30.0"),
    ]


def test_every_number_of_a_row_is_the_figure() -> None:
    cells = row_of(text(), LATE, "## Every policy at keep 0.2")
    assert cells == [
        f"`{LATE}`",
        "50.0% (45–55)",
        "-20.0 (-30.0 to -10.0)",
        "-3.25",
        "0.125 (0.125 to 0.125)",
        "0.125",
        "90.0%",
        "1,234",
        "2,345",
        "2.5",
        "12",
    ]
    assert row_of(text(), "full", "## Every policy at keep 0.2")[2] == "–"
    assert (
        row_of(text(), "am(proxy=assistant,delay=1,keep=…)", "## Other ratios")[1:]
        == ["50.0% (45–55) · -3.25 · 1,234"] * 3
    )


def test_a_failed_policy_is_shown_as_failed_wherever_it_stands() -> None:
    names = (LATE, SOON, "adaptive(keep=0.2)", "rkv(keep=0.2)")
    written = text(main={n: entry(n, None, None) for n in names}, equal={EQUAL_OURS: entry(EQUAL_OURS, None, None)})
    for name in names:
        cells = row_of(written, name, "## Every policy at keep 0.2")
        assert cells[1] == "failed: ValueError: planted"
        assert len(cells) == 11
    assert row_of(written, EQUAL_OURS, "## At equal size")[1] == "failed: ValueError: planted"
    assert row_of(written, "adaptive(keep=…)", "## Other ratios")[2] == "failed"
    for start in ("Compacting a turn at once", "Waiting one turn", "`adaptive(keep=0.2)`"):
        assert "failed" in finding(written, start)
    assert EQUAL_OURS not in written.partition("\n## Every policy")[0]
    some = entry(LATE) | {"status": {"ok": 8, "failed": 2}, "error": "ValueError: planted"}
    assert row_of(text(main={LATE: some}), LATE, "## Every policy at keep 0.2")[1] == "50.0% (45–55), 2 failed"


def test_every_policy_is_described_and_every_table_is_square() -> None:
    written = text()
    for described in describe():
        assert f"\n**`{described['name']}`**: " in written
    for block in re.findall(r"(?:^\|.*\n)+", written, re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_figures_of_the_peers_are_a_section_of_their_own_and_none_without_them() -> None:
    assert "authors' code" not in text()
    cell = {"policy": "knorm", "trajectory": "t", "tokens": 300, "compared": 300, "keep": "0.2", "kept": [180, 180]}
    found = {
        "model": "smollm2-135m",
        "dtype": "float32",
        "versions": {"kvpress": {"kvpress": "0.5.4", "transformers": "5.2.0", "torch": "2.9"}},
        "cells": [{**cell, "heads": 3, "equal": 3, "differing": []}],
    }
    part = text(found).partition("\n## Peers against their authors' code\n")[2].partition("\n## ")[0]
    assert "| knorm | 3/3 | 0 | 0 | – |" in part
    assert "Every head keeps the same tokens." in part


def test_a_stopped_measurement_goes_on_and_a_finished_one_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = [
        replace(t, turns=t.turns[:2], probes=tuple(p for p in t.probes if p.fact_turn < 2))
        for t in (samples.load()[0], samples.load()[40])
    ]
    monkeypatch.setattr("kvmill.traces.select.samples.load", lambda name="samples": cut)
    monkeypatch.setattr("kvmill.replay.recorded.named", {t.id: t for t in cut}.get)
    model, store = str(save_tiny(tmp_path / "model")), Store.open(tmp_path / "store")
    right, seen = fanout.Cells.quality, []

    def stop(self: fanout.Cells, trajectory: Any) -> Any:
        seen.append(trajectory.id)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return right(self, trajectory)

    def measured() -> dict[str, Any]:
        return policies.measured(store, model, ["random(keep=0.2)", LATE], 2)

    monkeypatch.setattr(fanout.Cells, "quality", stop)
    with pytest.raises(KeyboardInterrupt):
        measured()
    (begun,) = store.runs("replay")
    assert begun.state == "incomplete"
    found = measured()
    assert found["run"] == begun.run_id
    assert found["state"] == "complete"
    first, other = sorted(t.id for t in cut)
    assert seen == [first, other, other]
    assert [(e["policy"], e["n"]) for e in found["policies"]] == [("full", 2), ("random(keep=0.2)", 2), (LATE, 2)]
    assert measured() == found
    assert len(seen) == 3
    # Another question is another run.
    assert policies.measured(store, model, ["random(keep=0.2)"], 2)["run"] != begun.run_id
