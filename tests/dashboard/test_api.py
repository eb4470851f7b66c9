"""The API: what it answers for an empty, a filled and a damaged store, and how it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import fabricate
import pytest
from serving import client, files_below, service_of
from starlette.testclient import TestClient

from kvmill.dashboard.service import SERVED
from kvmill.dashboard.verbs import options_of, verbs
from kvmill.traces.ingest import ingest
from kvmill.traces.manifest import KINDS
from kvmill.traces.store import Store

EXAMPLES = Path(__file__).parents[1] / "traces" / "readers" / "examples"


@pytest.fixture
def api(tmp_path: Path) -> TestClient:
    return client(service_of(tmp_path / "store"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that no test changes."""
    return fabricate.filled(tmp_path_factory.mktemp("filled") / "store").path


@pytest.fixture
def filled(rows: Path) -> TestClient:
    return client(service_of(rows))


def test_an_empty_store_answers_with_empty_lists_and_nothing_is_made(api: TestClient, tmp_path: Path):
    assert api.get("/api/v1/runs").json() == {"total": 0, "runs": []}
    assert api.get("/api/v1/jobs").json() == {"total": 0, "jobs": [], "damaged": []}
    assert api.get("/api/v1/uploads").json() == {"uploads": []}
    assert api.get("/healthz").json()["status"] == "ok"
    assert not (tmp_path / "store").exists(), "looking creates nothing"


def test_runs_are_listed_newest_first_with_the_rows_of_each_table(filled: TestClient):
    found = filled.get("/api/v1/runs").json()
    assert found["total"] == len(found["runs"]) >= 2
    assert [run["created_at"] for run in found["runs"]] == sorted(
        (r["created_at"] for r in found["runs"]), reverse=True
    )
    replay = next(run for run in found["runs"] if run["kind"] == "replay")
    assert filled.get(f"/api/v1/runs/{replay['run']}").json() == replay
    assert replay["rows"]["cells"] > 0
    assert {run["kind"] for run in filled.get("/api/v1/runs?kind=plan").json()["runs"]} == {"plan"}
    assert len(filled.get("/api/v1/runs?limit=1").json()["runs"]) == 1


def test_results_are_what_the_command_prints(filled: TestClient, rows: Path):
    from kvmill.console import plain
    from kvmill.replay.results import summary

    run = filled.get("/api/v1/runs?kind=replay").json()["runs"][0]["run"]
    for by in ("policy", "family"):
        found = filled.get(f"/api/v1/runs/{run}/results?by={by}").json()
        assert found == plain(summary(Store(rows), run, by))


def test_rows_come_in_pages_and_as_csv(filled: TestClient):
    run = filled.get("/api/v1/runs?kind=replay").json()["runs"][0]["run"]
    whole = filled.get(f"/api/v1/runs/{run}/rows/cells").json()
    assert whole["total"] == len(whole["rows"]) > 3
    page = filled.get(f"/api/v1/runs/{run}/rows/cells?offset=1&limit=2").json()
    assert (page["total"], page["rows"]) == (whole["total"], whole["rows"][1:3])
    answer = filled.get(f"/api/v1/runs/{run}/rows/cells?as=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert [row["policy"] for row in csv.DictReader(io.StringIO(answer.text, newline=""))] == [
        row["policy"] for row in whole["rows"]
    ]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/v1/runs/nope", "no run 'nope'"),
        ("/api/v1/runs/..%2f..", "there is no"),
        ("/api/v1/runs/%2e%2e/results", "there is no run '..'"),
        ("/api/v1/jobs/nope", "no job 'nope'"),
        ("/api/v1/jobs/20260101-000000-000000-abcdef/log", "no job"),
        ("/api/v1/nope", "openapi.json lists what there is"),
    ],
)
def test_what_is_not_there_is_404_in_one_line(filled: TestClient, path: str, says: str):
    answer = filled.get(path)
    assert answer.status_code == 404
    assert says in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_table_that_a_run_does_not_have_is_404_and_lists_those_it_has(filled: TestClient):
    run = filled.get("/api/v1/runs?kind=plan").json()["runs"][0]["run"]
    assert "it has: simulations, plans" in filled.get(f"/api/v1/runs/{run}/rows/cells").json()["error"]
    assert filled.get(f"/api/v1/runs/{run}/results").status_code == 404


def test_a_damaged_store_is_503_everywhere_and_health_does_not_say_more(tmp_path: Path):
    fabricate.filled(tmp_path / "store")
    filled = client(service_of(tmp_path / "store"))
    run = filled.get("/api/v1/runs?kind=replay").json()["runs"][0]["run"]
    (tmp_path / "store" / "runs" / run / "manifest.json").write_text("{")
    for path in ("/api/v1/runs", f"/api/v1/runs/{run}", "/metrics"):
        answer = filled.get(path)
        assert answer.status_code == 503
        assert "damaged manifest" in answer.json()["error"]
    health = filled.get("/healthz")
    assert (health.status_code, health.json()) == (503, {"error": "the store cannot be read"})


@pytest.mark.parametrize("verb", SERVED)
def test_every_served_command_takes_its_own_options_and_lists_them_when_it_is_asked_wrong(api: TestClient, verb: str):
    path = f"/api/v1/jobs/{verb.replace(' ', '-')}"
    answer = api.post(path, json={"polciy": "full"})
    assert answer.status_code == 422
    told = answer.json()["error"]
    missing = [option.name for option in options_of(verb) if option.required]
    if not missing:
        assert "unknown option 'polciy'" in told
        assert all(option.name in told for option in options_of(verb))


def test_a_submitted_replay_is_recorded_as_the_words_of_the_command(api: TestClient):
    answer = api.post("/api/v1/jobs/replay", json={"policy": ["full", "te(keep=0.2)"], "limit": 2, "explain": True})
    assert answer.status_code == 202
    job = answer.json()
    assert job["arguments"] == ["--policy=full", "--policy=te(keep=0.2)", "--limit=2", "--explain"]
    assert (job["state"], job["by"], job["lane"]) == ("queued", "api 127.0.0.1", "heavy")
    assert api.get("/api/v1/jobs").json()["jobs"] == [api.get(f"/api/v1/jobs/{job['id']}").json()]
    assert api.get("/api/v1/jobs?verb=plan").json()["total"] == 0
    assert api.get("/api/v1/jobs?state=queued&verb=replay").json()["total"] == 1
    assert api.get(f"/api/v1/jobs/{job['id']}/log").text == ""
    assert api.get(f"/api/v1/jobs/{job['id']}/result").status_code == 409
    assert api.post(f"/api/v1/jobs/{job['id']}/resume").status_code == 409
    assert api.delete(f"/api/v1/jobs/{job['id']}").status_code == 409
    assert api.post(f"/api/v1/jobs/{job['id']}/cancel").status_code == 202


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ('{"limit": 0}', 422, "limit: "),
        ('{"limit": "2"}', 422, "limit: "),
        ('{"limit": 1e400}', 422, "limit: "),
        ('{"seed": 1.5}', 422, "seed: "),
        ('{"temperature": NaN}', 422, "temperature: "),
        ('{"policy": "full"}', 422, "policy: "),
        ('{"policy": ["full\\u0000"]}', 422, "policy.0: "),
        ('{"model": "--help\\n"}', 422, "model: "),
        ("[]", 422, "the body: "),
        ("{", 400, "not JSON"),
        ("", 400, "not JSON"),
        ('{"traces": "/etc/passwd"}', 403, "/etc/passwd: outside of what may be read"),
        ('{"model": "../../other"}', 403, "outside of what may be read"),
    ],
)
def test_bodies_that_do_not_fit_are_refused_naming_the_key(api: TestClient, body: str, status: int, says: str):
    answer = api.post("/api/v1/jobs/replay", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text
    assert api.get("/api/v1/jobs").json()["total"] == 0


def test_bodies_of_other_types_or_sizes_are_refused(api: TestClient):
    assert api.post("/api/v1/jobs/replay", content="limit=2").status_code == 415
    large = json.dumps({"model": "x" * (1 << 20)})
    sent = api.post("/api/v1/jobs/replay", content=large, headers={"content-type": "application/json"})
    assert sent.status_code == 413


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=1&limit=2", "state=asleep", "nope=1", "limit="]
)
def test_parameters_that_do_not_fit_are_refused(api: TestClient, query: str):
    answer = api.get(f"/api/v1/jobs?{query}")
    assert answer.status_code == 422
    if query == "nope=1":
        assert "Known: limit, state, verb" in answer.json()["error"]


def test_deleting_traces_deletes_the_uploads_they_came_from_and_submits_the_command(
    api: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    body = (EXAMPLES / "tau-bench.jsonl").read_bytes()
    sent = api.post("/api/v1/uploads?name=tau.jsonl", content=body)
    assert sent.status_code == 201
    kept = api.post("/api/v1/uploads?name=other.jsonl", content=b"{}").json()
    store = Store(tmp_path / "store")
    monkeypatch.chdir(store.path)  # where jobs begin
    run = ingest(store, [sent.json()["path"]]).run
    trajectory = store.query("select trajectory_id id from trajectories")["id"].to_pylist()[0]
    answer = api.delete(f"/api/v1/traces/{trajectory}")
    assert answer.status_code == 202, answer.text
    assert answer.json()["arguments"] == ["--", trajectory]
    assert [one["upload"] for one in api.get("/api/v1/uploads").json()["uploads"]] == [kept["upload"]]
    assert api.delete(f"/api/v1/traces/{run}").json()["verb"] == "traces delete"
    for nobody in ("nobody", "no/body", "no%2Fbody"):
        answer = api.delete(f"/api/v1/traces/{nobody}")
        assert (answer.status_code, "no trajectory and no ingest run" in answer.json()["error"]) == (404, True)
    audit = (tmp_path / "store" / "audit.jsonl").read_text()
    assert audit.count('"traces delete"') == 2


def test_served_commands_are_those_there_are():
    assert set(SERVED) <= set(verbs())


def test_runs_of_every_kind_can_be_asked_for_and_of_no_other(api: TestClient, tmp_path: Path):
    for kind in KINDS:
        run = Store.open(tmp_path / "store").begin(kind, {}).id
        assert [one["run"] for one in api.get(f"/api/v1/runs?kind={kind}").json()["runs"]] == [run]
    assert api.get("/api/v1/runs?kind=gate").status_code == 422


def test_a_damaged_job_hides_no_other_and_is_503_itself(api: TestClient, tmp_path: Path):
    torn, whole = (api.post("/api/v1/jobs/validate", json={}).json()["id"] for _ in range(2))
    (tmp_path / "store" / "jobs" / torn / "status.json").write_text("{")
    told = api.get("/api/v1/jobs").json()
    assert [job["id"] for job in told["jobs"]] == [whole]
    assert torn in told["damaged"][0]
    assert api.get(f"/api/v1/jobs/{torn}").status_code == 503
    assert "kvmill_damaged_jobs 1\n" in api.get("/metrics").text


def test_a_bug_is_500_without_its_traceback_and_the_log_has_it(api: TestClient, monkeypatch, capsys):
    from kvmill.dashboard.jobs import Jobs

    monkeypatch.setattr(Jobs, "found", lambda self: 1 / 0)
    answer = api.get("/api/v1/jobs")
    assert answer.status_code == 500
    assert "ZeroDivisionError" not in answer.text
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_no_method_but_those_of_the_table_does_anything(filled: TestClient, rows: Path):
    before = files_below(rows)
    for method in ("PUT", "PATCH", "OPTIONS", "TRACE", "DELETE"):
        answer = filled.request(method, "/api/v1/runs")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert filled.head("/api/v1/runs").status_code == 200
    assert files_below(rows) == before
