"""The commands with `--store s3://…`: what was recorded goes in, is listed, answered, exported and deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fabricate
import pytest
from nights import TE, configured, filled, night
from tiny import save_tiny
from typer.testing import CliRunner

from kvmill import cli
from kvmill.dashboard.access import Visitor
from kvmill.dashboard.queries import newest_runs
from kvmill.dashboard.service import Service
from kvmill.dashboard.snapshot import rows_of
from kvmill.errors import UserError
from kvmill.traces.objects import Bucket
from kvmill.traces.store import Store

MAIL = "jane.roe@contoso-mail.com"


def kvmill(store: str, *words: object, code: int = 0) -> Any:
    """The JSON answer of a command."""
    done = CliRunner().invoke(cli.build(), [*map(str, words), "--store", store, "--json"])
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout) if done.stdout else done.stderr


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    good = {
        "messages": [
            {"role": "user", "content": f"I am {MAIL}. What is two and two?"},
            {"role": "assistant", "content": "Four."},
        ]
    }
    path.write_text(json.dumps(good) + "\n" + f'{{"messages": "{MAIL}"}}\n')
    return path


def test_traces_in_and_out(bucket: str, recorded: Path, tmp_path: Path) -> None:
    first = kvmill(bucket, "traces", "ingest", recorded)
    assert (first["accepted"], first["rejected"]) == (1, 1)
    assert first["reject_file"] == f"{bucket}/runs/{first['run']}/rejects.jsonl"
    refused = Bucket.of(bucket).get(f"runs/{first['run']}/rejects.jsonl")
    assert refused is not None
    assert json.loads(refused.data)["line"] == 2
    second = kvmill(bucket, "traces", "ingest", recorded)
    assert (second["accepted"], second["duplicates"]) == (0, 1)  # redacted by the same key
    listed = kvmill(bucket, "traces", "list")
    assert len(listed["trajectories"]) == 1
    id = listed["trajectories"][0]["id"]
    assert "Four." in json.dumps(kvmill(bucket, "traces", "show", id))
    exported = kvmill(bucket, "traces", "export", "last", "--to", "atif", "--out", tmp_path / "out")
    assert exported
    assert "Four." in "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    everything = [Bucket.of(bucket).get(found.key) for found in Bucket.of(bucket).list()]
    assert not any(MAIL.encode() in found.data for found in everything if found)
    kvmill(bucket, "traces", "delete", first["run"])
    assert kvmill(bucket, "traces", "list")["trajectories"] == []
    assert kvmill(bucket, "store", "check")["problems"] == []


def test_answers_from_a_replay_and_a_plan(bucket: str) -> None:
    store = Store.open(bucket)
    run, plan = fabricate.replay(store), fabricate.plan(store)
    found = kvmill(bucket, "results")
    assert found["run"] == run
    assert {row["policy"]: row["n"] for row in found["policies"]} == dict.fromkeys(fabricate.MEASURED, 4)
    assert "policy" in kvmill(bucket, "recommend", run, code=4)
    rows = kvmill(bucket, "sql", "select run_id, kind from runs order by created_at")["rows"]
    assert [row["run_id"] for row in rows] == [run, plan]
    assert kvmill(bucket, "store", "compact")["removed"] == 0
    dry = kvmill(bucket, "store", "prune", "--older-than", "0h", "--kind", "plan", "--dry-run")
    assert [row["run"] for row in dry["removed"]] == [plan]
    kvmill(bucket, "store", "prune", "--older-than", "0h", "--kind", "plan")
    assert [info.run_id for info in store.runs()] == [run]
    kvmill(bucket, "store", "remove", run)
    assert store.runs() == []


def test_a_plan_takes_its_quality_from_a_replay_there(bucket: str) -> None:
    run = fabricate.replay(Store.open(bucket))
    flags = ["--workload", "long-agents", "--model", "qwen3-8b", "--gpu", "h200", "--gpus", "4", "--from", run]
    found = kvmill(bucket, "simulate", *flags, "--policy", fabricate.DELAYED, "--agents", "8", "--turns", "100")
    assert found["gpus"] == 4
    assert Store.open(bucket).latest("simulate") is not None


def test_pages_read_and_jobs_are_refused(bucket: str) -> None:
    store = Store.open(bucket)
    run = fabricate.replay(store)
    assert [row["run"] for row in newest_runs(store)] == [run]
    assert rows_of(store, "select count(*) n from cells")[0]["n"] > 0
    fabricate.replay(store)
    assert rows_of(store, "select count(distinct run_id) n from cells")[0]["n"] == 2
    service, visitor = Service(store), Visitor("test", True)
    assert service.jobs.list() == []
    for ask in (
        lambda: service.submit("replay", {"traces": "samples"}, visitor),
        lambda: service.upload("a.json", [b"{}"], visitor),
        lambda: service.delete_traces("any", visitor),
        service.require_folder,
    ):
        with pytest.raises(UserError, match="object store, and this needs a folder of this machine"):
            ask()
    said = CliRunner().invoke(cli.build(), ["jobs", "list", "--store", bucket])
    assert said.exit_code == 2


@pytest.mark.slow
def test_two_nights_and_a_plan_from_their_rows(bucket: str, tmp_path: Path) -> None:
    config = configured(tmp_path, str(save_tiny(tmp_path / "model")), (TE,))
    store = filled(bucket)
    code, first, _ = night(store, config)
    assert (code, first["verdict"]) == (4, "undecided")
    assert night(store, config, "--accept", first["run"])[0] == 0
    code, second, said = night(store, config)
    assert (code, second["verdict"], second["baseline"]) == (0, "green", first["run"]), said
    asked = ("--workload", "samples", "--model", "qwen3-8b", "--gpu", "h100", "--slo", "ttft_p95=2", "--agents", 4)
    plan = kvmill(bucket, "plan", *asked, "--replications", 2, "--max-gpus", 4, "--from", second["replay"])
    assert {row["policy"] for row in plan["plans"]} >= {"full"}
    assert all(row["gpus"] == 1 for row in plan["plans"])
    assert kvmill(bucket, "store", "check")["problems"] == []
