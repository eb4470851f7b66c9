"""Jobs: the command's answer, words, exit code and progress are kept; nothing is lost; the record is never torn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fabricate
import pytest
from waiting import PLAN, child, end_all, ended, is_gone, runs, until

from kvmill.dashboard import job as jobs_files
from kvmill.dashboard.job import RESULT, STATES, STATUS, Job, Status
from kvmill.dashboard.jobs import Jobs, NotNow, UnknownJob
from kvmill.errors import UserError
from kvmill.traces.store import Store


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path / "store")
    yield made
    end_all(made)


def test_a_verb_leaves_its_answer_exit_code_and_who_asked(jobs: Jobs):
    asked = jobs.submit("policies", by="ann")
    assert asked.state in ("queued", "running", "done")
    job = ended(jobs, asked.id)
    assert (job.state, job.status.exit_code, job.asked.by, job.status.message) == ("done", 0, "ann", None)
    assert "te" in {policy["name"] for policy in (jobs.result(job.id) or {})["policies"]}
    assert job.asked.submitted <= (job.status.started or "") <= (job.status.ended or "")


def test_an_ingest_reads_relative_paths_from_where_it_was_asked_and_names_its_run(jobs: Jobs, tmp_path: Path):
    source = Path(__file__).parents[1] / "traces" / "readers" / "examples" / "tau-bench.jsonl"
    (tmp_path / "here.jsonl").write_bytes(source.read_bytes())
    job = ended(jobs, jobs.submit("traces ingest", ["here.jsonl"], by="ann", cwd=tmp_path).id)
    assert job.state == "done", jobs.log(job.id)
    assert (jobs.result(job.id) or {})["accepted"] > 0
    store = Store(jobs.store)
    assert [run.run_id for run in store.runs("ingest")] == [job.status.run]
    assert store.info(job.status.run or "").config["job"] == job.id, "a run says which job made it"


def test_a_failure_keeps_its_exit_code_and_the_line_that_says_why(jobs: Jobs, tmp_path: Path):
    job = ended(jobs, jobs.submit("traces ingest", ["nowhere.jsonl"], by="ann", cwd=tmp_path).id)
    assert (job.state, job.status.exit_code) == ("failed", 2)
    assert (job.status.message or "").startswith("error: no such file: nowhere.jsonl")
    assert "nowhere.jsonl" in jobs.log(job.id)
    assert jobs.result(job.id) is None


def test_no_answer_is_an_answer_too_and_keeps_exit_code_4(jobs: Jobs):
    fabricate.filled(jobs.store)
    job = ended(jobs, jobs.submit("recommend", by="ann").id)
    assert (job.state, job.status.exit_code) == ("done", 4), jobs.log(job.id)
    assert (job.status.message or "").startswith("no answer: ")
    assert (jobs.result(job.id) or {})["policy"] is None


def test_progress_is_seen_while_it_runs_and_cancel_ends_it_within_seconds(jobs: Jobs):
    job = jobs.submit("plan", PLAN, by="ann")
    job = until(jobs, job.id, lambda job: job.status.progress is not None)
    assert dict(job.status.progress or {}).keys() == {"label", "done", "total", "unit", "detail", "eta_s"}
    process = child(job)
    jobs.cancel(job.id, by="bob")
    job = ended(jobs, job.id)
    assert (job.state, job.status.message) == ("cancelled", "cancelled by bob")
    assert is_gone(process)
    with pytest.raises(NotNow, match="is cancelled: there is nothing to cancel"):
        jobs.cancel(job.id, by="bob")


def test_a_killed_supervisor_reads_as_lost_and_nobody_works_on_unseen(jobs: Jobs):
    job = until(jobs, jobs.submit("plan", PLAN, by="ann").id, runs)
    process = child(job)
    os.kill(job.status.pid or 0, signal.SIGKILL)
    job = until(jobs, job.id, lambda job: job.ended, 10.0)
    assert job.state == "lost"
    assert "gone without a word" in (job.status.message or "")
    assert is_gone(process), "the command ends with its supervisor"
    assert ended(jobs, jobs.submit("validate", ["--nonsense"], by="ann").id).state == "failed", "its slot is free again"
    jobs.remove(job.id)
    with pytest.raises(UnknownJob):
        jobs.get(job.id)


def test_a_killed_command_is_a_failure_that_says_by_what(jobs: Jobs):
    job = until(jobs, jobs.submit("plan", PLAN, by="ann").id, lambda job: job.status.progress is not None)
    child(job).kill()
    job = ended(jobs, job.id)
    assert (job.state, job.status.exit_code) == ("failed", -9)
    assert "SIGKILL" in (job.status.message or "")


def test_jobs_go_on_when_the_process_that_asked_is_gone(jobs: Jobs, tmp_path: Path):
    """As after a restart of the server: another process sees the same list, and the job goes on to its end."""
    script = (
        "import sys; from kvmill.dashboard.jobs import Jobs; print(Jobs(sys.argv[1]).submit('policies', by='x').id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(jobs.store)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert ended(jobs, done.stdout.strip()).state == "done"
    assert [job.to_json() for job in Jobs(jobs.store).list()] == [job.to_json() for job in jobs.list()]


def test_unknown_verbs_and_options_that_belong_to_the_supervisor_are_refused(jobs: Jobs):
    with pytest.raises(UserError, match=r"unknown job 'dashboard'.*Known: .*replay"):
        jobs.submit("dashboard", by="ann")
    for word in ("--store", "--store=/elsewhere", "--json"):
        with pytest.raises(UserError, match="leave it out"):
            jobs.submit("policies", [word], by="ann")
    with pytest.raises(UserError, match="has to end"):
        jobs.submit("demo", ["--serve"], by="ann")
    assert not jobs.folder.exists(), "nothing was written"


@pytest.mark.parametrize("id", ["", "..", "../../etc", "20260101-000000-000000-abcdef/..", "lanes"])
def test_no_name_leads_out_of_the_folder(jobs: Jobs, id: str):
    for ask in (jobs.get, jobs.log, jobs.result, jobs.remove):
        with pytest.raises(UnknownJob):
            ask(id)


def test_a_status_read_while_it_is_written_is_always_whole(tmp_path: Path):
    folder = tmp_path / "store" / "jobs" / "x"
    folder.mkdir(parents=True)
    path = folder / STATUS
    jobs_files.write(path, Status("running", jobs_files.now(), message="0"))
    stop = threading.Event()

    def rewrite() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            jobs_files.write(path, Status("running", jobs_files.now(), message=f"{number} " * (number % 900)))

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        seen = {jobs_files.read_status(folder).message for _ in range(1_000)}
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1, "it was written meanwhile"


def test_a_damaged_record_says_which_file(jobs: Jobs):
    job = ended(jobs, jobs.submit("policies", by="ann").id)
    (job.folder / RESULT).write_text("{")
    with pytest.raises(UserError, match="damaged answer"):
        jobs.result(job.id)
    whole = (job.folder / STATUS).read_bytes()
    (job.folder / STATUS).write_text("{")
    with pytest.raises(UserError, match=r"damaged record .*status\.json"):
        jobs.get(job.id)
    (job.folder / STATUS).write_bytes(whole)


def test_the_log_gives_whole_lines_of_its_end_and_obeys_no_escape_sequence(jobs: Jobs):
    job = ended(jobs, jobs.submit("policies", by="ann").id)
    (job.folder / "log.txt").write_bytes(b"first\nsecond \x1b[31m\nthird\n")
    assert jobs.log(job.id) == "first\nsecond \\x1b[31m\nthird\n"
    assert jobs.log(job.id, 8) == "third\n"


def test_a_job_as_json_is_flat_and_complete(jobs: Jobs):
    told = ended(jobs, jobs.submit("policies", by="ann").id).to_json()
    assert json.loads(json.dumps(told)) == told
    assert told["state"] in STATES
    assert {"id", "verb", "arguments", "by", "submitted", "progress", "exit_code", "run", "message"} <= told.keys()
    assert isinstance(jobs.get(told["id"]), Job)
