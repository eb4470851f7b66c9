"""The page Traces: an upload becomes an ingest, and everything that became of its records is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from pages import click, newest_ended, open_page, whole, words
from streamlit.runtime.state import SessionStateProxy
from waiting import end_all

from kvmill.dashboard import access
from kvmill.dashboard.jobs import Jobs
from kvmill.dashboard.service import Service
from kvmill.traces.ingest import ingest
from kvmill.traces.store import Store

EXAMPLES = Path(__file__).parents[1] / "traces" / "readers" / "examples"
RUN = json.loads((EXAMPLES / "tau-bench.jsonl").read_text().splitlines()[0])


@pytest.fixture(autouse=True)
def _ended(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (access.TOKEN, access.TOKEN_FILE, access.ROOTS):
        monkeypatch.delenv(name, raising=False)
    yield
    end_all(Jobs(own_store))


def spoken(text: str) -> dict:
    return {**RUN, "task_id": text, "traj": [*RUN["traj"][:1], {"role": "user", "content": text}, *RUN["traj"][2:]]}


def log(path: Path, requests: int = 200) -> Path:
    rows = [f"{n * 0.5},{100 + n},{n % 7}" for n in range(requests)]
    path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]) + "\n")
    return path


def test_an_empty_store_offers_to_bring_recordings(own_store: Path):
    app = open_page("traces")
    assert "kvmill traces ingest PATH" in words(app)
    assert app.file_uploader[0].allowed_type, "the browser offers what is read"
    assert {".json", ".jsonl", ".csv", ".parquet", ".traj", ".eval", ".gz"} <= set(app.file_uploader[0].allowed_type)
    assert not own_store.exists(), "looking creates nothing"


def test_no_word_to_the_session_is_needed_to_know_of_a_job_that_was_begun(
    own_store: Path, monkeypatch: pytest.MonkeyPatch
):
    """At such a word Streamlit leaves the script of a visitor who has moved on: the job would be nobody's."""
    submit, begun = Service.submit, []
    monkeypatch.setattr(Service, "submit", lambda *given: (submit(*given), begun.append(1))[0])
    for name in ("__setitem__", "__getitem__", "update", "get", "setdefault"):
        told = getattr(SessionStateProxy, name)
        monkeypatch.setattr(SessionStateProxy, name, lambda *given, told=told: _left(begun) or told(*given))
    app = open_page("traces")
    app.file_uploader[0].set_value([("runs.jsonl", json.dumps(RUN).encode(), "application/jsonl")]).run()
    next(button for button in app.button if button.label == "Read them").click()
    monkeypatch.setattr(st, "rerun", begun.clear)
    app.run()
    assert not app.exception
    (job,) = [job.id for job in Jobs(own_store).found(10)[0]]
    assert app.session_state["traces brought"].job == job


def _left(begun: list[int]) -> None:
    if begun:
        raise RuntimeError("the script was left here")


def test_an_upload_is_ingested_by_a_job_and_the_page_turns_to_it(own_store: Path):
    records = [
        spoken("I am jane.doe@meridian-labs.io, call +1 415 555 2671"),
        spoken("Hello"),
        {"task_id": 9, "traj": "no"},
    ]
    content = "\n".join(json.dumps(record) for record in records).encode()
    app = open_page("traces")
    app.file_uploader[0].set_value([("runs.jsonl", content, "application/jsonl")]).run()
    click(app, "Read them")
    job = newest_ended(own_store)
    assert (job.verb, job.state, job.asked.by.partition(" ")[0]) == ("traces ingest", "done", "page")
    whole(app.run())
    assert app.selectbox(key="choice of ingest").value == job.status.run
    text = words(app)
    assert "runs.jsonl: tau-bench" in text, "the format that was found"
    assert [(m.label, m.value) for m in app.metric] == [
        ("accepted · recorded", "2"), ("duplicates · recorded", "0"),
        ("chained · recorded", "0"), ("rejected · recorded", "1"),
    ]  # fmt: skip
    frames = [frame.value for frame in app.dataframe]
    redacted = next(frame for frame in frames if "replaced" in frame)
    assert "email" in " ".join(redacted["kind"])
    refused = next(frame for frame in frames if "reason" in frame)
    assert len(refused) == 1
    assert not app.file_uploader[0].value, "the upload has left the memory"
    assert "jane.doe" not in text
    lines = [json.loads(line) for line in (own_store / "audit.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines] == ["upload", "submit"]
    (upload,) = [path for path in (own_store / "uploads").iterdir() if path.name[0] != "."]
    assert upload.suffix == ".json", "the file itself, which is not redacted, is gone"
    made = next(frame for frame in frames if "the file" in frame).to_dict("records")
    assert [(row["name"], row["size (bytes)"], row["accepted"], row["rejected"]) for row in made] == [
        ("runs.jsonl", len(content), 2, 1)
    ]
    assert "runs.jsonl was deleted after it was read" in text
    click(app, "Delete it")
    assert list((own_store / "uploads").iterdir()) == []


def test_text_that_no_trajectory_holds_is_looked_for_by_a_job(own_store: Path):
    (own_store / "in").mkdir(parents=True)
    strange = {**RUN, "notes_of_the_operator": "a long text that no reader looks at, " * 4}
    (own_store / "in" / "a.jsonl").write_text(json.dumps(strange) + "\n")
    ingest(Store.open(own_store), [own_store / "in" / "a.jsonl"])
    app = click(open_page("traces"), "Look for text that no trajectory holds")
    assert newest_ended(own_store).verb == "traces check"
    whole(app.run())
    found = next(frame.value for frame in app.dataframe if "path" in frame.value and "characters" in frame.value)
    assert "notes_of_the_operator" in next(iter(found["path"]))


def test_a_path_outside_of_what_may_be_read_is_refused_with_what_to_do(own_store: Path):
    app = open_page("traces")
    app.text_input(key="path 0").input("/etc/passwd").run()
    click(app, "Read them")
    assert "outside of what may be read here" in words(app)
    assert not (own_store / "jobs").exists()


def test_a_path_inside_an_input_root_is_read(own_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(access.ROOTS, str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    path = log(tmp_path / "data" / "log.csv")
    app = open_page("traces")
    app.text_input(key="path 0").input(str(path)).run()
    click(app, "Read them")
    assert newest_ended(own_store).state == "done"
    whole(app.run())
    text = words(app)
    assert "log.csv: vidur" in text
    assert "200 requests in 99.5 s: 2 per second" in text
    assert "burstiness 0.00" in text
    assert "input tokens per request (recorded)" in "".join(chart.proto.spec for chart in app.get("vega_lite_chart"))


def test_losses_lengths_and_turns_of_real_formats_are_shown(own_store: Path):
    store = Store.open(own_store)
    report = ingest(store, [EXAMPLES / "tau-bench.jsonl", EXAMPLES / "swe-agent.jsonl"])
    app = open_page("traces", ingest=report.run)
    found = next(frame.value for frame in app.dataframe if "format found" in frame.value)
    assert set(found["format found"]) == {"tau-bench", "swe-agent"}
    characters = sorted(store.query("SELECT characters FROM trajectories")["characters"].to_pylist())
    listed = ", ".join(f"{value:,}" for value in characters)
    assert f"characters per trajectory (recorded)**: {listed} (n = {len(characters)})" in words(app), (
        "a few values are no distribution"
    )
    lost = next(frame.value for frame in app.dataframe if "meaning" in frame.value)
    assert all(lost["meaning"]), "every loss is said in words"
    assert "Trajectories do not say when they began" in words(app)
    app.selectbox(key="choice of ingest").select("all").run()
    assert app.query_params["ingest"] == "all"
    whole(app)


def test_an_ingest_of_the_command_line_says_what_it_kept(own_store: Path):
    store = Store.open(own_store)
    ingest(store, [EXAMPLES / "tau-bench.jsonl"], redact=False)
    text = words(open_page("traces"))
    assert "asked not to redact" in text
    assert "No record was rejected" in text


def test_deleting_needs_a_second_thought_and_takes_everything(own_store: Path):
    store = Store.open(own_store)
    run = ingest(store, [EXAMPLES / "tau-bench.jsonl"]).run
    app = open_page("traces")
    delete = next(button for button in app.button if button.key == f"delete {run}")
    assert delete.disabled
    app.checkbox(key=f"sure {run}").check().run()
    app.button(key=f"delete {run}").click().run()
    assert newest_ended(own_store).verb == "traces delete"
    assert store.query("SELECT count(*) AS n FROM trajectories")["n"].to_pylist() == [0]
    whole(app.run())


def test_a_damaged_store_says_what_is_wrong(own_store: Path):
    store = Store.open(own_store)
    run = ingest(store, [EXAMPLES / "tau-bench.jsonl"]).run
    next(store.folder(run).glob("trajectories*.parquet")).write_bytes(b"torn")
    app = open_page("traces")
    assert "The store cannot be read" in words(app)
