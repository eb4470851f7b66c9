"""What must never reach the disk, put where it leaks most: errors, metadata, attachments, listings, refused records.

Bug 20: redaction that skips exception text, knows no e-mail or number, or cuts traces instead. Kind: privacy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvmill.traces.ingest import ingest
from kvmill.traces.redact_key import KEY_FILE
from kvmill.traces.store import Store

KEY = "sk-proj-0aB1cD2eF3gH4iJ5kL6mN7oP"
SECRETS = (
    "ann.lee@corp.io",
    "123-45-6789",
    KEY.removeprefix("sk-proj-"),
    "(415) 262-2671",
    "4111 1111 1111 1111",
    "hunter2horse",
    "Annegret",
    "/home/annegret",
    "84.23.11.9",
)
LISTING = (
    "drwxr-xr-x 2 annegret staff 4096 May  1 10:00 .\n-rw-r--r-- 1 annegret staff 12 May  1 10:00 /home/annegret/.env"
)
FRAMES = 'Traceback (most recent call last):\n  File "/home/annegret/a.py"\n'
ERROR = f"{FRAMES}SMTPError: ann.lee@corp.io (123-45-6789) via {KEY}"
CUSTOMER = json.dumps({"first_name": "Annegret", "phone": "(415) 262-2671", "card": "4111 1111 1111 1111"})


def chat() -> dict[str, Any]:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "ls", "arguments": json.dumps({"path": "/home/annegret"})},
    }
    return {
        "messages": [
            {"role": "system", "content": "DB_PASSWORD=hunter2horse"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "I am Annegret, ann.lee@corp.io"}],
                "name": "Annegret",
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call],
                "reasoning_content": "SSN 123-45-6789 at 84.23.11.9",
            },
            {"role": "tool", "content": LISTING, "tool_call_id": "c1"},
            {"role": "assistant", "content": CUSTOMER},
            {"role": "tool", "content": ERROR},
            {"role": "assistant", "content": "mysql -p hunter2horse"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "ls", "description": "for ann.lee@corp.io", "parameters": {}}}
        ],
    }


def trace() -> dict[str, Any]:
    """A span with an error, as telemetry is exported; keys of the resource hold what the process was started with."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": CUSTOMER}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": ERROR}]}]),
        "exception.message": ERROR,
        "user.id": "ann.lee@corp.io",
    }
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "process.command", "value": {"stringValue": f"run --key {KEY}"}}]},
                "scopeSpans": [
                    {
                        "scope": {"name": "test"},
                        "spans": [
                            {
                                "traceId": "0" * 31 + "1",
                                "spanId": "0" * 15 + "1",
                                "name": "chat m",
                                "startTimeUnixNano": "1000000000",
                                "endTimeUnixNano": "2000000000",
                                "attributes": [{"key": k, "value": {"stringValue": v}} for k, v in attributes.items()],
                                "events": [
                                    {"name": "exception", "attributes": [{"key": "m", "value": {"stringValue": ERROR}}]}
                                ],
                                "status": {"code": 2, "message": ERROR},
                            }
                        ],
                    }
                ],
            }
        ]
    }


def tau() -> dict[str, Any]:
    traj = [{"role": "user", "content": "I am ann.lee@corp.io"}, {"role": "assistant", "content": "Hello"}]
    gold = {"name": "update", "kwargs": {"email": "ann.lee@corp.io", "ssn": "123-45-6789"}}
    return {
        "task_id": "ann.lee@corp.io",
        "reward": 1.0,
        "trial": 0,
        "traj": traj,
        "info": {"task": {"actions": [gold]}},
    }


def stored_text(folder: Path) -> str:
    """All text of a store, Parquet decoded."""
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            parts.append(json.dumps(table.to_pylist(), default=str, ensure_ascii=False))
            parts.append(str(table.schema.metadata))
        elif path.is_file() and path.name != KEY_FILE:
            parts.append(path.read_text(errors="replace"))
    return "\n".join(parts)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "in"
    folder.mkdir()
    broken = json.dumps({"messages": [{"role": "nobody", "content": ERROR + LISTING + CUSTOMER}]})
    (folder / "chat.jsonl").write_text(f"{json.dumps(chat())}\n{broken}\n{{cut off {ERROR!r}\n")
    (folder / "spans.json").write_text(json.dumps(trace()))
    (folder / "tau.json").write_text(json.dumps([tau()]))
    return sorted(folder.iterdir())


def test_nothing_of_it_is_in_any_file_of_the_store(files: list[Path], tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    report = ingest(store, files)
    assert (report.accepted, report.rejected) == (3, 2)
    text = stored_text(tmp_path / "store")
    assert "Traceback (most recent call last)" in text, "what is no secret is kept, errors included"
    assert {secret for secret in SECRETS if secret in text} == set()
    assert not [word for word in ("annegret", "4152622671", "corp.io") if word in text.lower()]
    assert {"email", "national_id", "api_key", "phone", "card", "password", "name", "home_path", "ipv4"} <= set(
        report.redacted
    )


def test_only_when_it_is_asked_for_is_it_kept_and_the_run_says_so(files: list[Path], tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    report = ingest(store, files, redact=False)
    text = stored_text(tmp_path / "store")
    assert all(secret in text for secret in SECRETS)
    assert report.redacted == {}
    assert store.info(report.run).config["redact"] is False
    assert not (tmp_path / "store" / KEY_FILE).exists()


def test_the_same_file_again_is_the_same_runs_and_another_store_cannot_tell(files: list[Path], tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    ingest(store, files)
    again = ingest(store, files)
    assert (again.accepted, again.duplicates) == (0, 3)
    other = Store.open(tmp_path / "other")
    ingest(other, files)
    texts = [pa.table({"r": s.query("select record from trajectories order by 1")["record"]}) for s in (store, other)]
    assert texts[0] != texts[1]
