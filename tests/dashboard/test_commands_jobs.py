"""`kvmill jobs …` sees what the dashboard sees."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner
from waiting import ended

from kvmill.cli import build
from kvmill.dashboard.commands_jobs import _reached
from kvmill.dashboard.jobs import Jobs
from kvmill.dashboard.verbs import FOLDERS


@pytest.fixture
def kvmill(own_store: Path):
    app = build()

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["jobs", *words])
        return done.exit_code, done.output

    return run


def test_a_job_is_run_listed_shown_logged_and_removed(kvmill, own_store: Path):
    assert kvmill("list") == (0, "no jobs yet\n")
    code, said = kvmill("run", "--json", "--", "traces", "formats")
    job = json.loads(said)
    assert (code, job["verb"], job["arguments"]) == (0, "traces formats", [])
    ended(Jobs(own_store), job["id"])
    assert "traces formats" in kvmill("list")[1]
    assert [one["id"] for one in json.loads(kvmill("list", "--json")[1])["jobs"]] == [job["id"]]
    shown = kvmill("show", job["id"])[1]
    assert "command: kvmill traces formats" in shown
    assert "state: done" in shown
    assert json.loads(kvmill("show", job["id"], "--json")[1])["result"]["formats"]
    assert kvmill("log", job["id"])[0] == 0
    code, said = kvmill("cancel", job["id"])
    assert (code, "is done: there is nothing to cancel" in said) == (2, True)
    assert kvmill("remove", job["id"]) == (0, f"{job['id']} is gone\n")
    assert kvmill("list") == (0, "no jobs yet\n")


def test_flags_after_the_dashes_belong_to_the_verb(kvmill, own_store: Path):
    said = json.loads(kvmill("run", "--json", "--", "traces", "list", "--limit", "3")[1])
    assert said["arguments"] == ["--limit", "3"]
    ended(Jobs(own_store), said["id"])
    code, said = kvmill("run", "--limit", "3")
    assert (code, "Known: --help, --json, --store" in said) == (2, True)


def test_what_is_no_job_is_one_line_with_what_is(kvmill):
    code, said = kvmill("run", "--", "dashboard")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("error: unknown job 'dashboard'")
    assert kvmill("show", "nope")[0] == 2


def test_jobs_know_every_folder_of_commands_that_answers():
    from kvmill.cli import FOLDERS as ALL

    assert set(ALL) - set(FOLDERS) == {"kvmill.dashboard.commands", "kvmill.benchmarks.commands"}


@pytest.mark.parametrize(("state", "said"), [("running", "44/114 simulations, 1m10s to go"), ("done", None)])
def test_a_job_that_ended_early_leaves_no_half_way_behind(state, said):
    progress = {"done": 44, "total": 114, "unit": "simulations", "eta_s": 70.0}
    assert _reached(SimpleNamespace(state=state, status=SimpleNamespace(progress=progress))) == said
