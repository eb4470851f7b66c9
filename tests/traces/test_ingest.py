"""Ingest: everything good goes in once, everything bad is kept with its reason, and doing it again changes nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import InputError, UserError
from kvmill.traces import record
from kvmill.traces.delete import delete
from kvmill.traces.ingest import expand, ingest, require_accepted
from kvmill.traces.select import select
from kvmill.traces.store import Store


def talk(n: int, **values: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": f"Question {n}"}, {"role": "assistant", "content": f"Answer {n}"}]
    return {"messages": said, **values}


def lines(*rows: object) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def test_a_broken_line_goes_to_the_reject_file_and_the_rest_is_accepted(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        lines(talk(1), '{"messages": [', {"messages": [{"role": "user", "content": "me@corp.io"}]}, talk(2))
    )
    report = ingest(store, [path])
    assert (report.accepted, report.rejected, report.duplicates) == (2, 2, 0)
    assert report.reject_file is not None
    rejects = [json.loads(line) for line in Path(report.reject_file).read_text().splitlines()]
    assert [(r["source"], r["line"]) for r in rejects] == [(str(path), 2), (str(path), 3)]
    assert rejects[0]["raw"] == '{"messages": [\n'
    assert "no assistant message" in rejects[1]["reason"]
    assert "corp.io" not in rejects[1]["raw"], "what was refused is redacted as well"
    assert sum(report.reasons.values()) == 2
    require_accepted(report, strict=False)
    with pytest.raises(InputError, match=r"2 records were refused \(--strict\)"):
        require_accepted(report, strict=True)
    assert store.check() == []
    assert store.compact() == 0
    assert Path(report.reject_file).exists(), "compacting keeps reject files"


def test_the_same_file_again_or_another_copy_adds_nothing(store: Store, tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "renamed.bin"
    plain.write_text(lines(talk(1), talk(2), talk(1)))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    first = ingest(store, [plain])
    assert (first.accepted, first.duplicates) == (2, 1)
    before = select(store, "last")
    again = ingest(store, [packed])
    assert (again.accepted, again.rejected, again.duplicates) == (0, 0, 3)
    assert select(store, "last") == before, "the newest ingest still means these runs"
    assert select(store, "all") == before
    require_accepted(again, strict=True)


def test_ids_come_from_the_content(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(lines(talk(1, model="x")))
    (tmp_path / "b").write_text(lines(talk(1, model="y"), talk(2)))
    assert ingest(store, [tmp_path / "a"]).accepted == 1
    assert ingest(store, [tmp_path / "b"]).duplicates == 1
    ids = [run.id for run in select(store, "all")]
    assert all(id.startswith("openai-chat-") and len(id) == len("openai-chat-") + 12 for id in ids)
    assert len(set(ids)) == 2


def test_redaction_is_on_unless_it_is_turned_off(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    said = [{"role": "user", "content": "I am ann@corp.io"}, {"role": "assistant", "content": "Hello ann@corp.io"}]
    path.write_text(json.dumps(said))
    report = ingest(store, [path])
    assert report.redacted == {"email": 2}
    assert "corp.io" not in store.query("select record from trajectories")["record"][0].as_py()
    plain = ingest(store, [path], redact=False)
    assert (plain.accepted, plain.redacted) == (1, {})
    assert select(store, "last")[0].turns[0].assistant.content == "Hello ann@corp.io"


def test_rows_say_what_is_in_a_run(store: Store, tmp_path: Path) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}
    said = [
        {"role": "user", "content": "1234"},
        {"role": "assistant", "content": "", "reasoning": "thinking", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12345"},
        {"role": "user", "content": "123"},
        {"role": "assistant", "content": "12"},
    ]
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    response = {"choices": [{"message": said[-1]}], "usage": usage}
    (tmp_path / "a").write_text(json.dumps({"messages": said[:-1], "response": response, "family": "demo"}))
    report = ingest(store, [tmp_path / "a"])
    row = store.query("select * from trajectories").to_pylist()[0]
    assert (row["family"], row["turns"], row["tool_calls"], row["probes"]) == ("demo", 2, 1, 0)
    assert row["characters"] == 4 + len("thinking") + len('{"a": 1}') + 5 + 3 + 2
    assert (row["label_scorer"], row["already_compacted"], row["losses"]) == (None, False, ["no_tool_schemas"])
    assert record.load(row["record"]).id == row["trajectory_id"]
    first, second = store.query("select * from turns order by turn").to_pylist()
    assert (first["assistant_characters"], first["tool_characters"], first["user_characters"]) == (16, 5, 0)
    assert (second["user_characters"], second["fresh_input_tokens"], second["output_tokens"]) == (3, 10, 4)
    assert first["output_tokens"] is None
    assert first["started_s"] is None
    assert report.losses == {"no_tool_schemas": 1}


def test_findings_are_counted(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(
        lines(talk(1) | {"messages": [*talk(1)["messages"], {"role": "assistant", "content": " "}]})
    )
    assert ingest(store, [tmp_path / "a"]).findings == {"empty_turn": 1}


def test_equal_rows_of_a_log_are_different_requests_but_the_same_log_twice_is_not(store: Store, tmp_path: Path) -> None:
    row = {"timestamp": 5, "input_length": 10, "output_length": 1}
    other = {"timestamp": 0, "input_length": 10, "output_length": 1}
    (tmp_path / "a").write_text(lines(other, row, row))
    (tmp_path / "b").write_text(lines(row, row))
    assert ingest(store, [tmp_path / "a"]).accepted == 3
    assert ingest(store, [tmp_path / "a"]).duplicates == 3
    assert ingest(store, [tmp_path / "b"]).accepted == 2, "equal rows of another log are other requests"


def test_a_file_of_unknown_format_is_named_and_does_not_stop_the_others(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text(lines(talk(1)))
    (folder / "b.csv").write_text("TIMESTAMP,ContextTokens\n1,2\n")
    (folder / "c.json").write_text('{"steps": [], "agent": {}}')
    report = ingest(store, [folder])
    assert [(file.accepted, file.error is None) for file in report.files] == [(1, True), (0, False), (0, False)]
    assert "an object with the keys steps, agent" in str(report.files[2].error)
    assert ", openai-chat, " in str(report.files[2].error), "the known formats are listed"
    require_accepted(report, strict=False)
    alone = ingest(store, [folder / "b.csv", folder / "a.jsonl"])
    with pytest.raises(
        InputError, match=r"b\.csv: no known format; its first record is an object with the keys TIMESTAMP"
    ):
        require_accepted(alone, strict=False)
    assert store.latest("ingest") is not None


def test_nothing_is_begun_for_a_missing_file_or_an_unknown_format(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file: .*nope\.json"):
        ingest(store, [tmp_path / "nope.json"])
    (tmp_path / "a").write_text(lines(talk(1)))
    with pytest.raises(UserError, match=r"unknown trace format 'openai'.*Did you mean 'openai-chat'"):
        ingest(store, [tmp_path / "a"], format="openai")
    assert store.runs() == []


def test_a_named_format_is_used_even_if_nothing_looks_like_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(lines(talk(1)))
    report = ingest(store, [tmp_path / "a"], format="mooncake")
    assert (report.accepted, report.rejected) == (0, 1)
    assert store.runs("ingest")[0].state == "incomplete"


def test_expand_takes_files_folders_and_patterns_once_each(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.json", "a.json", ".hidden", "sub/c.json"):
        (tmp_path / name).write_text("x")
    found = expand([tmp_path / "b.json", str(tmp_path / "*.json"), tmp_path])
    assert [path.name for path in found] == ["b.json", "a.json", "c.json"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no files in the folder"):
        expand([tmp_path / "empty"])


def test_strange_content_comes_back_to_the_letter(store: Store, tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(190):
        deep = {"a": [deep]} if isinstance(deep, str) else {"a": deep}
    strange = "nul \0, line \u2028, \r\n, \ufeff, \U000f0000, quote ' \" \\ %s ${x} {{ y }} <|im_end|> " + "z" * 200_000
    record = talk(1, tools=[{"function": {"name": "f", "parameters": deep}}])
    record["messages"][1]["content"] = strange
    record["messages"][0]["content"] = strange
    (tmp_path / "a").write_text(lines(record), newline="")
    assert ingest(store, [tmp_path / "a"], redact=True).accepted == 1
    run = select(store, "last")[0]
    assert run.turns[0].assistant.content == strange
    assert run.prefix[0].content == strange
    assert run.tools[0]["function"]["parameters"] == deep


def test_deleting_a_run_takes_its_words_out_of_every_file(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(lines(talk(1), talk(2)))
    ingest(store, [tmp_path / "a"])
    gone, stays = select(store, "all")
    replay = store.begin("replay", {})
    replay.add({"kept": [{"trajectory_id": t.id, "text": "word"} for t in (gone, stays)]}, key="x")
    replay.finish()
    assert delete(store, gone.id) == {"trajectories": 1, "turns": 1, "requests": 0, "kept": 1}
    assert [t.id for t in select(store, "all")] == [stays.id]
    assert store.query("select trajectory_id from kept")["trajectory_id"].to_pylist() == [stays.id]
    said = gone.turns[0].assistant.content.encode()
    assert not [p for p in store.path.rglob("*") if p.is_file() and said in p.read_bytes()]
    with pytest.raises(UserError, match="no trajectory and no ingest run"):
        delete(store, gone.id)
    delete(store, store.runs("ingest")[0].run_id)
    assert store.runs("ingest") == []
    assert store.query("select * from kept").num_rows == 0


def test_real_runs_are_accepted_whole(store: Store, shared_data: Path) -> None:
    report = ingest(store, [shared_data / "traces/tau-bench/gpt-4o-airline.trial0.json"])
    assert (report.accepted, report.rejected, report.duplicates) == (50, 0, 0)
    assert report.losses["no_tool_schemas"] == 45
    mean = store.query("select avg(json_extract(record, '$.label.value')::double) m from trajectories")
    assert mean["m"].to_pylist() == [pytest.approx(0.42)]


def test_the_bundled_samples_are_ingested_once_and_keep_their_ids(tmp_path: Path) -> None:
    from kvmill.traces import samples
    from kvmill.traces.ingest import ingest_samples
    from kvmill.traces.select import select

    store = Store.open(tmp_path)
    ingest_samples(store)
    ingest_samples(store)
    assert select(store, "last") == sorted(samples.load(), key=lambda t: t.id)
    assert store.query("select count(*) n from trajectories")["n"].to_pylist() == [80]
    assert store.query("select count(*) n from turns")["n"].to_pylist() == [880]
