"""Nothing is read or written without the token, on any route, by any method; it is never in a URL or a log."""

from __future__ import annotations

import time
from pathlib import Path

import fabricate
import pytest
from serving import BEARER, TOKEN, client, files_below, service_of
from starlette.testclient import TestClient

from kvmill.dashboard.routes import Route
from kvmill.dashboard.table import ROUTES

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
GUARDED = [route for route in ROUTES if not route.public]
WRONG = {
    "none": {},
    "wrong": {"Authorization": f"Bearer {TOKEN[:-1]}"},
    "longer": {"Authorization": f"Bearer {TOKEN}x"},
    "bare": {"Authorization": TOKEN},
    "basic": {"Authorization": f"Basic {TOKEN}"},
    "empty": {"Authorization": "Bearer "},
    "other header": {"X-Token": TOKEN, "Cookie": f"token={TOKEN}"},
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = fabricate.filled(tmp_path_factory.mktemp("token") / "store").path
    service_of(store).jobs.submit("validate", by="ann")
    return store


def path_of(route: Route, where: Path) -> str:
    """The route's path for things that are there."""
    service = service_of(where)
    run = service.store.runs("replay")[0].run_id
    jobs = service.jobs.list()
    told = {"run": run, "table": "cells", "job": jobs[0].id if jobs else "none", "upload": "none", "id": run}
    return route.path.format(**told)


def ids(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", GUARDED, ids=ids)
def test_no_request_without_the_token_reads_or_writes_anything(route: Route, where: Path):
    path = path_of(route, where)
    before = files_below(where)
    guest = client(service_of(where), token=False)
    for method in METHODS:
        for headers in WRONG.values():
            for given in (path, f"{path}?token={TOKEN}&access_token={TOKEN}&name=a"):
                answer = guest.request(method, given, headers=headers, **_body(method))
                assert answer.status_code == 401, f"{method} {given} {headers}"
                assert answer.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    assert answer.json() == {"error": "give the token in the header: Authorization: Bearer …"}
    assert files_below(where) == before


def _body(method: str) -> dict[str, object]:
    return {"json": {"paths": ["a"]}} if method in ("POST", "PUT", "PATCH") else {}


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v1", "/api/v2/jobs", "/api/v1/jobs/", "/api/v1/nope"])
def test_paths_that_do_not_exist_are_not_told_apart_from_those_that_do(path: str, where: Path):
    answer = client(service_of(where), token=False).get(path, follow_redirects=True)
    assert answer.status_code in (401, 404)
    assert "error" not in answer.text or "Bearer" in answer.text


def test_with_the_token_the_same_requests_are_answered(where: Path):
    api = client(service_of(where))
    for route in GUARDED:
        if route.method == "GET" and "{" not in route.path:
            assert api.get(route.path).status_code == 200, route.path
    assert api.get("/healthz").status_code == 200


def test_only_health_is_public_and_says_no_more_than_the_version(where: Path):
    assert [route.path for route in ROUTES if route.public] == ["/healthz"]
    answer = client(service_of(where), token=False).get("/healthz")
    assert answer.json().keys() == {"status", "version"}
    assert client(service_of(where), token=False).post("/healthz").status_code == 405


def test_the_token_in_a_url_opens_nothing_and_with_the_header_it_is_an_unknown_parameter(where: Path):
    answer = client(service_of(where)).get(f"/api/v1/jobs?token={TOKEN}")
    assert answer.status_code == 422
    assert TOKEN not in answer.text


def test_the_token_is_in_no_answer_no_log_and_no_file(where: Path, capfd: pytest.CaptureFixture[str]):
    api = client(service_of(where))
    job = api.post("/api/v1/jobs/validate", json={}).json()
    answers = [api.get(route.path).text for route in ROUTES if route.method == "GET" and "{" not in route.path]
    answers += [api.get(f"/api/v1/jobs/{job['id']}{part}").text for part in ("", "/log")]
    said = capfd.readouterr()
    assert not [text for text in [*answers, said.out, said.err] if TOKEN in text]
    assert not [path for path in where.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_jobs_are_started_without_the_token_in_their_environment(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KVMILL_TOKEN", TOKEN)
    service = service_of(where)
    script = tmp_path / "printenv"
    script.write_text("#!/bin/sh\nenv\n")
    script.chmod(0o755)
    service.jobs.python = str(script)
    job = service.jobs.submit("validate", by="ann")
    log = job.folder / "log.txt"
    for _ in range(200):
        if "PATH=" in log.read_text():
            break
        time.sleep(0.02)
    assert "PATH=" in log.read_text()
    assert TOKEN not in log.read_text()


def test_too_many_requests_are_told_when_to_come_again(where: Path):
    api = client(service_of(where), rate_per_s=5)
    statuses = [api.get("/api/v1/jobs").status_code for _ in range(8)]
    assert statuses[:5] == [200] * 5
    answer = api.get("/api/v1/jobs")
    assert (statuses[-1], answer.status_code, answer.headers["retry-after"]) == (429, 429, "1")


def test_guessing_tokens_is_slower_than_asking(where: Path):
    api = client(service_of(where), rate_per_s=50)
    wrong = [api.get("/api/v1/jobs", headers={"Authorization": "Bearer x"}).status_code for _ in range(10)]
    assert wrong.count(401) <= 6
    assert wrong[-1] == 429


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost.evil.example:8501"},
    ],
)
def test_without_a_token_other_sites_cannot_act_through_the_users_browser(headers: dict[str, str], where: Path):
    """A page of another site, or a name that resolves to this machine, must not submit jobs."""
    api = client(service_of(where, token=None), token=False)
    before = files_below(where)
    for method, path in (
        ("GET", "/api/v1/runs"),
        ("POST", "/api/v1/jobs/validate"),
        ("POST", "/api/v1/uploads?name=a"),
    ):
        assert api.request(method, path, headers=headers, json={} if method == "POST" else None).status_code == 403
    assert files_below(where) == before
    assert api.get("/api/v1/runs", headers={"Origin": "http://127.0.0.1:8501"}).status_code == 200


def test_a_token_works_from_any_address(where: Path):
    api: TestClient = client(service_of(where), token=False)
    assert api.get("/api/v1/runs", headers={"Host": "kvmill.example", **BEARER}).status_code == 200
