import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from kvmill.errors import UserError
from kvmill.simulator import arrivals, identities, queues
from kvmill.simulator.blocks import BlockPool
from kvmill.simulator.closed_forms import batching_open
from kvmill.simulator.commands import register
from kvmill.simulator.decodes import DecodeSet
from kvmill.simulator.estimates import estimate
from kvmill.simulator.identities import jumping, overload
from kvmill.simulator.queues import QUEUES, unlimited
from kvmill.simulator.reality.shared import Comparison
from kvmill.simulator.sample_path import sample_path_checks
from kvmill.simulator.validate import absolute, interval, measured, validate
from kvmill.simulator.validation_text import HEAD, markdown, text

RUN = CliRunner()
PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
SHARE = 0.15  # of the run lengths; wider intervals are then asked for


@pytest.fixture(scope="module")
def exact():
    return validate(only="exact")


@pytest.fixture(scope="module")
def intervals():
    return validate(only="interval", share=SHARE, workers=2)


def failed(report):
    return [check for check in report["checks"] if not check["passed"]]


def test_every_identity_holds(exact):
    assert exact["passed"], failed(exact)
    names = " | ".join(check["name"] for check in exact["checks"])
    for part in (
        "lone request", "jumped ≡ stepped", "≡ full", "blocks lost", "overload × 50", "request-seconds running",
        "token-seconds decoding", "block-seconds", "memory report", "Table 2", "replicas, same seeds", "keep 0.1 to 1",
        "sessions/s",
    ):  # fmt: skip
        assert part in names


def test_every_closed_form_lies_in_an_interval_that_is_narrow_enough(intervals):
    assert intervals["passed"], failed(intervals)
    names = " | ".join(check["name"] for check in intervals["checks"])
    for part in (
        "M/M/c, c = 2", "M/M/c, c = 10", "Pollaczek-Khinchine), cv² 0.25", "cv² 1", "cv² 4", "M/D/1, load 0.8",
        "M/D/1, load 0.92", "processor sharing", "M/G/∞: variance of the number", "16 at once", "64 agents",
        "mean-value analysis", "Poisson arrivals",
    ):  # fmt: skip
        assert part in names
    for check in intervals["checks"]:
        assert check["limit"] <= check["asked"]


def test_every_check_says_what_it_compared(exact, intervals):
    for check in exact["checks"] + intervals["checks"]:
        assert set(check) == {"name", "kind", "value", "truth", "error", "limit", "passed", "asked", "signed"}
        assert (check["error"] <= check["limit"] <= (check["asked"] or check["limit"])) == check["passed"]
    assert text(exact).startswith(f"{len(exact['checks'])} checks, all passed")


@pytest.mark.slow
def test_every_closed_form_holds_at_full_length():
    found = validate(only="interval", workers=2)
    assert found["passed"], failed(found)
    for check in found["checks"]:
        wide = any(part in check["name"] for part in ("load 0.92", "64 agents", "40 agents"))
        assert check["asked"] == (0.05 if wide else 0.02)


def test_the_page_in_the_documentation_lists_these_checks_with_their_verdicts(exact, intervals):
    """Figures of the engine's own path move with the engine; accounts of memory and of a table stay as they are."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.startswith(HEAD)
    lines = page.splitlines()
    told = {row[0]: row for row in (line.strip("| ").split(" | ") for line in lines if line.startswith("| "))}
    renew = "kvmill bench validation --data FOLDER --write"
    for check in exact["checks"] + intervals["checks"]:
        assert (told[check["name"]][1], told[check["name"]][-1]) == (check["kind"], "yes"), renew
    accounts = [line for line in markdown(exact).splitlines() if "memory report" in line or "Table 2" in line]
    assert len(accounts) > 20
    assert [line for line in accounts if line not in lines] == [], renew
    assert {row[1] for row in told.values()} >= {"exact", "interval", "reality"}
    assert not any(row[-1] == "NO" for row in told.values())


def test_a_wrong_value_fails_and_fails_the_report():
    assert not absolute("x", "exact", 1.0, 1.1).passed
    assert not measured(Comparison("x", 1.1, 1.0, 0.05)).passed
    assert measured(Comparison("x", 0.96, 1.0, 0.05)).signed == pytest.approx(-0.04)
    values = np.random.default_rng(0).normal(1.0, 0.3, 30_000)
    assert interval(estimate("x", values, 1.0, widest=0.02), 10).passed
    assert not interval(estimate("x", values, 1.02, widest=0.02), 10).passed
    assert not interval(estimate("x", values[:300], 1.0, widest=1e-6), 10).passed, "too wide to be a test"


def test_an_unknown_kind_and_a_folder_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(UserError, match="exact, interval, reality"):
        validate(only="exat")
    with pytest.raises(UserError, match="no such folder"):
        validate(only="reality", data=tmp_path / "nowhere")


@pytest.fixture
def no_recorded_runs(monkeypatch):
    monkeypatch.delenv("KVMILL_SHARED_DATA", raising=False)


@pytest.mark.usefixtures("no_recorded_runs")
def test_without_recorded_runs_the_page_says_what_was_left_out():
    found = validate(only="reality")
    assert len(found["skipped"]) == 3
    assert all("--data" in row["reason"] for row in found["skipped"])
    assert "3 skipped" in text(found)
    assert "- skipped: " in markdown(found)


@pytest.mark.usefixtures("no_recorded_runs")
def test_the_command_prints_one_object_a_page_or_a_table_and_refuses_unknown_kinds():
    app = typer.Typer()
    register(app)
    asked = {flag: RUN.invoke(app, ["validate", "--only", "reality", flag]) for flag in ("--json", "--markdown")}
    found = json.loads(asked["--json"].stdout)
    assert found["passed"]
    assert {"name", "kind", "value", "truth", "error", "limit", "passed"} <= set(found["checks"][0])
    assert asked["--markdown"].stdout == markdown(found)
    assert RUN.invoke(app, ["validate", "--only", "reality"]).stdout.strip() == text(found).strip()
    assert RUN.invoke(app, ["validate", "--only", "exat"]).exit_code == 2


# What each check is there to catch, planted.


def test_steps_that_all_sequences_share_but_each_pays_a_part_of_are_caught(monkeypatch):
    """Throughput inflated by the batch: the flaw of a published fleet simulator."""
    plain = DecodeSet.span_s
    monkeypatch.setattr(DecodeSet, "span_s", lambda self, steps: plain(self, steps) / max(1, self.count))
    (_, over, _, limit), *_ = overload()
    assert over > limit


def test_arrivals_at_a_constant_rate_are_caught(monkeypatch):
    """The command-line presets of another simulator."""
    monkeypatch.setattr(arrivals.Renewal, "times", lambda self, rng, first_s: _even(first_s, 1 / self.rate))
    found = {one.name: interval(one, 20) for one in unlimited(2.0, 20_000, 1.0)}
    assert found["Poisson arrivals: mean gap"].passed
    assert not found["Poisson arrivals: variance of the gap"].passed
    assert not found["M/G/∞: variance of the number present"].passed


def _even(first, gap):
    moment = first
    while True:
        yield moment
        moment += gap


def test_a_block_that_is_lost_is_caught(monkeypatch):
    monkeypatch.setattr(identities, "JUMPS", identities.JUMPS[:1])
    give = BlockPool.give
    monkeypatch.setattr(BlockPool, "give", lambda self, count: give(self, max(0, count - (count > 90))))
    with pytest.raises(AssertionError, match="block"):
        list(jumping())


def test_rows_that_are_counted_once_too_often_are_caught(monkeypatch):
    advance = DecodeSet.advance

    def heavier(self, steps):
        advance(self, steps)
        self.rows += self.count > 3

    monkeypatch.setattr(DecodeSet, "advance", heavier)
    wrong = [name for name, value, truth, limit in sample_path_checks() if abs(value - truth) > limit]
    assert [name for name in wrong if "token-seconds" in name]
    assert not [name for name in wrong if "request-seconds" in name]


def test_a_step_law_that_is_a_little_off_is_caught(monkeypatch):
    queue = next(queue for queue in QUEUES if queue.make is queues.batching and queue.arguments == (4.0,))
    monkeypatch.setattr(queues, "batching_open", lambda rate, step, *rest: batching_open(rate, 1.03 * step, *rest))
    (one,) = queue.run(0.3)
    assert not interval(one, 25).passed
