"""Inspect logs: attachments put back, calls joined with their events, targets that can be judged again as labels."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import pytest
from sources import items

from kvmill.traces import checks, formats
from kvmill.traces.files import read_file
from kvmill.traces.readers import inspect_events
from kvmill.traces.readers.inspect_ai import FORMAT, sniff
from kvmill.traces.readers.inspect_events import usage_of
from kvmill.traces.reading import Bad
from kvmill.traces.trajectory import Trajectory, Usage

MD5 = "0123456789abcdef0123456789abcdef"
LONG = "a very long page"
MESSAGES: list[dict[str, Any]] = [
    {"id": "m0", "role": "user", "content": "Find it.", "source": "input"},
    {
        "id": "m1",
        "role": "assistant",
        "content": [{"type": "reasoning", "reasoning": "look it up"}, {"type": "text", "text": "One moment."}],
        "tool_calls": [{"id": "c1", "function": "go", "arguments": {"url": "u"}, "type": "function"}],
    },
    {"id": "m2", "role": "tool", "content": f"attachment://{MD5}", "tool_call_id": "c1", "function": "go"},
    {"id": "m3", "role": "assistant", "content": "Oslo"},
]
RAW = {"message": {"tool_calls": [{"id": "c1", "function": {"name": "go", "arguments": '{"url":"u"}'}}]}}
CALLS: list[dict[str, Any]] = [
    {
        "event": "model",
        "timestamp": "2026-01-05T10:00:00+00:00",
        "completed": "2026-01-05T10:00:02+00:00",
        "input": [],
        "input_refs": [[0, 1]],
        "tools": [{"name": "go", "description": f"attachment://{MD5}", "parameters": {}}],
        "output": {
            "choices": [{"message": MESSAGES[1]}],
            "usage": {"input_tokens": 50, "output_tokens": 5, "total_tokens": 55, "input_tokens_cache_read": 40},
        },
        "call": {"request": {}, "response": {"choices": [RAW]}},
    },
    {"event": "tool", "id": "c1"},
    {
        "event": "model",
        "timestamp": "2026-01-05T10:00:06+00:00",
        "input_refs": [[0, 3]],
        "output": {"choices": [{"message": MESSAGES[3]}], "time": 1.5},
    },
]
SAMPLE: dict[str, Any] = {
    "id": 7,
    "epoch": 1,
    "input": "Find it.",
    "target": " Oslo",
    "messages": MESSAGES,
    "scores": {"includes": {"value": "C", "answer": "Oslo"}},
    "events": CALLS,
    "attachments": {MD5: LONG},
    "message_pool": MESSAGES[:3],
}
EVAL = {"task": "pkg/Browser", "model": "openai/m", "scorers": [{"name": "includes"}]}
LOG: dict[str, Any] = {"version": 2, "status": "success", "eval": EVAL, "samples": [SAMPLE]}
HEADER = {key: value for key, value in LOG.items() if key != "samples"}
ARCHIVE: list[Any] = [
    {"member": "header.json", "value": HEADER},
    {"member": "_journal/start.json", "value": {"version": 2, "eval": EVAL}},
    {"member": "samples/7_epoch_1.json", "value": SAMPLE},
    {"member": "summaries.json", "value": [{"id": 7}]},
]


def read(records: list[Any]) -> list[Trajectory]:
    made = items(FORMAT, records)
    assert all(item.value is not None for item in made), [item.reason for item in made]
    return [item.value for item in made if isinstance(item.value, Trajectory)]


def one(**changes: Any) -> Trajectory:
    (run,) = read([{**LOG, "samples": [{**SAMPLE, **changes}]}])
    return run


def refusals(records: list[Any]) -> list[str]:
    return [item.reason for item in items(FORMAT, records) if item.value is None]


def test_a_sample_is_a_run_with_attachments_put_back() -> None:
    assert formats.detect([LOG], "x").name == "inspect-ai"
    run = one()
    assert [(m.role, m.content) for m in run.messages()] == [
        ("user", "Find it."),
        ("assistant", "One moment."),
        ("tool", LONG),
        ("assistant", "Oslo"),
    ]
    assert run.turns[0].assistant.reasoning == "look it up"
    assert (run.turns[0].tools[0].name, run.turns[0].tools[0].tool_call_id) == ("go", "c1")
    assert run.tools[0]["function"]["description"] == LONG
    assert (run.family, run.model) == ("browser", "openai/m")
    assert run.meta == {"sample_id": 7, "sample_epoch": 1, "scores": {"includes": "C"}}
    assert run.losses == ()
    assert checks.trajectory_findings(run) == []


def test_arguments_are_as_the_provider_sent_them_where_its_answer_was_logged() -> None:
    assert one().turns[0].assistant.tool_calls[0].arguments == '{"url":"u"}'
    bare = one(events=[])
    assert bare.turns[0].assistant.tool_calls[0].arguments == '{"url": "u"}'
    assert {"arguments_were_objects", "no_tool_schemas"} == set(bare.losses)


def test_usage_and_times_come_from_the_call_that_gave_the_message() -> None:
    first, last = one().turns
    assert first.usage == Usage(fresh_input_tokens=10, cache_read_tokens=40, output_tokens=5)
    assert (first.started_s, first.duration_s, first.tool_wait_s) == (0.0, 2.0, 4.0)
    assert (last.usage, last.started_s, last.duration_s) == (None, 6.0, 1.5)
    grader = {"event": "model", "output": {"choices": [{"message": {"id": "g", "role": "assistant"}}]}}
    graded = one(events=[*CALLS, grader])
    assert [turn.usage for turn in graded.turns] == [first.usage, None]
    assert "missing_calls" in graded.losses


@pytest.mark.parametrize(
    ("total", "fresh"),
    [(55, 10), (95, 50), (None, 10)],  # the cache inside the input; beside it; not said
)
def test_the_total_tells_whether_the_input_includes_the_cache(total: int | None, fresh: int) -> None:
    raw = {"input_tokens": 50, "output_tokens": 5, "total_tokens": total, "input_tokens_cache_read": 40}
    assert usage_of(raw) == Usage(fresh, 40, None, 5)


def test_an_archive_reads_like_the_log_in_one_file() -> None:
    assert formats.detect(ARCHIVE, "x").name == "inspect-ai"
    assert read(ARCHIVE) == read([LOG])
    killed = [ARCHIVE[1], ARCHIVE[2]]
    assert read(killed) == read([LOG])
    damaged = [Bad(1, "holds NaN, Infinity or a number beyond all bounds", ""), *ARCHIVE[1:]]
    assert [item.value for item in items(FORMAT, damaged) if item.value] == read([LOG])


def test_after_an_error_the_last_call_says_what_was_said() -> None:  # bug 16
    run = one(messages=[], error={"message": "boom"})
    assert [m.content for m in run.messages()] == ["Find it.", "One moment.", LONG, "Oslo"]
    assert "interrupted" in run.losses
    elsewhere = {"message_pool": None, "events_data": {"messages": MESSAGES[:3], "calls": []}}
    assert one(messages=[], error={"message": "boom"}, **elsewhere) == run
    nothing = {**SAMPLE, "messages": [], "events": [], "error": {"message": "boom"}}
    assert refusals([{**LOG, "samples": [nothing, SAMPLE]}]) == ["a sample without messages: it ended in an error"]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, ("contains", "Oslo")),
        ({"scores": {"match": {"value": "I"}}}, ("contains", "Oslo")),
        ({"scores": {"choice": {"value": "C"}}, "target": "B"}, ("choice", "B")),
        ({"scores": {"exact": {"value": 1}}, "target": ["a", "b"]}, ("exact", ["a", "b"])),
        ({"scores": {}}, ("contains", "Oslo")),  # not scored yet: the log names the scorer
        ({"target": ""}, None),
        ({"target": None}, None),
    ],
)
def test_a_target_is_a_label_if_its_scorer_can_judge_again(changes: dict[str, Any], label: Any) -> None:
    found = one(**changes).label
    assert (found and (found.scorer, found.value)) == label


def test_a_model_graded_score_is_no_label_but_kept() -> None:
    graded = {**SAMPLE, "scores": {"model_graded_qa": {"value": "P"}, "other": {"value": {"a": 1}}}}
    (run,) = read([{**LOG, "eval": {**EVAL, "scorers": None}, "samples": [graded]}])
    assert run.label is None
    assert run.meta["scores"] == {"model_graded_qa": "P"}


@pytest.mark.parametrize(
    ("changes", "loss"),
    [
        ({"attachments": {}}, "content_not_recorded"),
        ({"error_retries": [{"message": "x"}]}, "missing_calls"),
        ({"events": [*CALLS, {"event": "compaction"}]}, "already_compacted"),
        (
            {"messages": [*MESSAGES[:3], {"role": "assistant", "content": [{"type": "reasoning", "redacted": True}]}]},
            "reasoning_encrypted",
        ),
    ],
)
def test_what_a_sample_lacks_is_a_loss(changes: dict[str, Any], loss: str) -> None:
    run = one(**changes)
    assert loss in run.losses
    assert run.already_compacted == (loss == "already_compacted")


@pytest.mark.parametrize("version", [1, 2, 3, 4, 99])
def test_no_version_number_is_a_gate(version: int) -> None:  # bug 16
    assert read([{**LOG, "version": version}]) == read([LOG])


def test_samples_of_a_cancelled_log_are_read_and_marked_unless_they_were_judged() -> None:
    cancelled = {**LOG, "status": "cancelled", "samples": [SAMPLE, {**SAMPLE, "scores": None}]}
    assert ["interrupted" in run.losses for run in read([cancelled])] == [False, True]


def test_a_number_that_is_none_costs_no_log(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    scores = {"f1": {"value": math.nan}, "includes": {"value": 0.5}}
    log = {**LOG, "results": {"metrics": [math.nan, math.inf]}, "samples": [{**SAMPLE, "scores": scores}]}
    path.write_text(json.dumps(log))
    found, made, _ = read_file(path)
    (item,) = made
    assert found.name == "inspect-ai"
    assert isinstance(item.value, Trajectory)
    assert item.value.meta["scores"] == {"includes": 0.5}


def test_small_files_that_unfold_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_events, "_MOST_ATTACHED", 3 * len(LONG))
    many = [*MESSAGES[:2], *[MESSAGES[2]] * 4, MESSAGES[3]]
    assert refusals([{**LOG, "samples": [{**SAMPLE, "messages": many}]}]) == [
        f"its attachments unfold to more than {3 * len(LONG)} characters"
    ]
    monkeypatch.setattr(inspect_events, "_MOST_MESSAGES", 5)
    refs = [{**CALLS[2], "input_refs": [[0, 3]] * 2}]
    assert refusals([{**LOG, "samples": [{**SAMPLE, "messages": [], "events": refs}]}]) == [
        "a call was given more than 5 messages"
    ]


def test_a_failed_tools_message_is_its_error() -> None:
    failed = {**MESSAGES[2], "content": "", "error": {"type": "timeout", "message": "Timed out."}}
    assert one(messages=[*MESSAGES[:2], failed, MESSAGES[3]]).turns[0].tools[0].content == "Timed out."


def test_logs_without_samples_and_strange_members_are_refused() -> None:
    assert refusals([HEADER]) == ["a log without samples"]
    assert refusals(ARCHIVE[:2]) == ["a log without samples"]
    assert refusals([*ARCHIVE, {"member": "evil.json", "value": {}}]) == ["no member of an Inspect log"]
    assert not sniff({"member": "evil.json", "value": {}})
    assert not sniff({"version": 2, "status": "x"})


def log_of(path: Path) -> list[Any]:
    if path.suffix != ".eval":
        return [json.loads(path.read_text())]
    with zipfile.ZipFile(path) as archive:
        names = sorted(archive.namelist(), key=lambda name: name != "header.json")
        return [{"member": name, "value": json.loads(archive.read(name))} for name in names]


def test_the_real_logs_read_whole(shared_data: Path) -> None:
    folder = shared_data / "traces/inspect-ai"
    told = {}
    for path in sorted([*folder.glob("*.eval"), *folder.glob("*.json")]):
        records = log_of(path)
        assert formats.detect(records, "x").name == "inspect-ai"
        samples = records[0].get("samples") or [r["value"] for r in records if r["member"].startswith("samples/")]
        runs = read(records)
        for run, sample in zip(runs, samples, strict=True):
            assert [m.content for m in run.messages()] == [m["content"] for m in sample["messages"]]
            assert run.label is None or run.label.value == sample["target"].strip()
        told[path.name.rpartition("__")[2][:25]] = (
            len(runs),
            sum(len(run.turns) for run in runs),
            sum(len(turn.assistant.tool_calls) for run in runs for turn in run.turns),
            sum(turn.usage is not None for run in runs for turn in run.turns),
        )
    assert told == {
        "2025-02-11T15-17-00-05-00": (10, 10, 0, 10),
        "2025-05-12T20-27-36-04-00": (1, 5, 4, 5),
        "log_formats.eval": (1, 1, 0, 1),
        "log_formats.json": (1, 1, 0, 0),
        "log_message_deduplication": (1, 6, 5, 0),
    }


def test_the_real_browser_log_adds_up_to_its_own_totals(shared_data: Path) -> None:
    (path,) = (shared_data / "traces/inspect-ai").glob("*browser.json")
    log = json.loads(path.read_text())
    (run,) = read([log])
    totals = log["samples"][0]["model_usage"]["openai/gpt-4o-mini"]
    usages = [turn.usage for turn in run.turns if turn.usage]
    read_tokens = sum(usage.cache_read_tokens or 0 for usage in usages)
    assert read_tokens == totals["input_tokens_cache_read"]
    assert sum(usage.fresh_input_tokens or 0 for usage in usages) == totals["input_tokens"] - read_tokens
    assert sum(usage.output_tokens or 0 for usage in usages) == totals["output_tokens"]
    assert run.turns[0].assistant.tool_calls[0].arguments == '{"url":"https://www.aisi.gov.uk/"}'
