"""Claude Code: a compaction cuts a session, subagents are runs of their own."""

from __future__ import annotations

from typing import Any

from sources import Beside, items

from kvmill.traces.readers.claude_code import FORMAT
from kvmill.traces.trajectory import Trajectory


def line(kind: str, uuid: str, parent: str | None, content: Any, **values: Any) -> dict[str, Any]:
    named = {"uuid": uuid, "parentUuid": parent, "sessionId": "s", "isSidechain": False}
    return {"type": kind, **named, "message": {"role": kind, "id": uuid, "content": content}, **values}


def boundary(uuid: str, parent: str | None, **metadata: Any) -> dict[str, Any]:
    made = {"type": "system", "subtype": "compact_boundary", "uuid": uuid, "sessionId": "s", "parentUuid": None}
    return made | ({"logicalParentUuid": parent} if parent else {}) | {"compactMetadata": metadata}


def runs(values: list[Any], source: Beside | None = None) -> list[Trajectory]:
    found = items(FORMAT, values, source)
    assert all(item.value is not None for item in found), [item.reason for item in found]
    return [item.value for item in found if isinstance(item.value, Trajectory)]


def said(run: Trajectory) -> list[str]:
    return [m.content for m in run.messages()]


TALK = [
    line("user", "u1", None, "Go."),
    line("assistant", "a1", "u1", "Where?"),
    line("user", "u2", "a1", "Left."),
    line("assistant", "a2", "u2", "A wall."),
]
SUMMARY = line("user", "s1", "b", "So far: a wall.", isCompactSummary=True, isVisibleInTranscriptOnly=True)


def test_a_compaction_cuts_the_session_and_the_summary_begins_the_next_run() -> None:
    first, second = runs([*TALK, boundary("b", "a2"), SUMMARY, line("assistant", "a3", "s1", "On.")])
    assert said(first) == ["Go.", "Where?", "Left.", "A wall."]
    assert not first.already_compacted
    assert said(second) == ["So far: a wall.", "On."]
    assert second.already_compacted
    assert {"already_compacted", "missing_calls"} <= set(second.losses)
    assert second.meta == {"session": "s", "part": 1}


def test_what_a_compaction_kept_stands_in_the_next_prefix() -> None:
    after = line("user", "u3", "a2", "Right.")  # names a kept message, though it comes after the compaction
    talk = [*TALK, boundary("b", None, preservedMessages={"uuids": ["u2", "a2"]}), SUMMARY, after]
    _, second = runs([*talk, line("assistant", "a3", "u3", "A door.")])
    assert [m.content for m in second.prefix] == ["So far: a wall.", "Left.", "A wall.", "Right."]
    assert [turn.assistant.content for turn in second.turns] == ["A door."]
    span = {"headUuid": "a2", "anchorUuid": "s1", "tailUuid": "a2"}
    talk = [*TALK, boundary("b", "a2", preservedSegment=span), SUMMARY, {**after, "parentUuid": "s1"}]
    _, second = runs([*talk, line("assistant", "a3", "u3", "A door.")])
    assert [m.content for m in second.prefix] == ["So far: a wall.", "A wall.", "Right."]


def test_a_session_that_goes_on_in_a_new_file_was_compacted() -> None:
    begun = "This session is being continued from a previous conversation that ran out of context. …"
    (run,) = runs([line("user", "u1", None, [{"type": "text", "text": begun}]), line("assistant", "a1", "u1", "On.")])
    assert run.already_compacted


def test_nothing_said_after_a_compaction_is_no_run() -> None:
    assert len(runs([*TALK, boundary("b", "a2"), SUMMARY])) == 1


def test_subagents_in_the_file_are_runs_of_their_own() -> None:
    side = {"isSidechain": True, "agentId": "x7"}
    talk = [*TALK, line("user", "u9", None, "Find it.", **side), line("assistant", "a9", "u9", "Found.", **side)]
    main, agent = runs([*talk, line("user", "u3", "a2", "And?"), line("assistant", "a3", "u3", "Done.")])
    assert said(main) == ["Go.", "Where?", "Left.", "A wall.", "And?", "Done."]
    assert said(agent) == ["Find it.", "Found."]
    assert (agent.family, agent.meta) == ("claude-code-subagent", {"session": "s", "agent": "x7", "parent": "s"})
    old = {"isSidechain": True}
    talk = [*TALK, line("user", "u9", None, "Find it.", **old), line("assistant", "a9", "u9", "Found.", **old)]
    assert [said(run)[0] for run in runs(talk)] == ["Go.", "Find it."]


def test_subagents_beside_the_session_are_read_with_it() -> None:
    side = {"isSidechain": True, "agentId": "x7"}
    files = {"s/subagents/agent-x7.jsonl": [line("user", "u9", None, "Find it.", **side), 7]}
    files["s/subagents/agent-x7.jsonl"].append(line("assistant", "a9", "u9", "Found.", **side))
    source = Beside(files, "s.jsonl")
    found = items(FORMAT, TALK, source)
    assert source.opened == ["s/subagents/agent-x7.jsonl"]
    made = [item.value for item in found if isinstance(item.value, Trajectory)]
    assert [said(run)[0] for run in made] == ["Go.", "Find it."]
    assert made[1].meta["parent"] == "s"
    assert [item.reason for item in found if item.value is None] == ["s/subagents/agent-x7.jsonl: not an object"]


def test_a_kept_message_that_is_written_after_the_compaction_was_said_before_it() -> None:
    cut = boundary("b", "a2", preservedMessages={"anchorUuid": "s1", "uuids": ["u2", "a2"]})
    late = line("assistant", "a2", "s1", "A wall.")
    talk = [*TALK[:3], cut, SUMMARY, late, line("user", "u3", "a2", "Right."), line("assistant", "a3", "u3", "A door.")]
    first, second = runs(talk)
    assert said(first) == ["Go.", "Where?", "Left.", "A wall."]
    assert [m.content for m in second.prefix] == ["So far: a wall.", "Left.", "A wall.", "Right."]
    assert [turn.assistant.content for turn in second.turns] == ["A door."]


def test_subagents_that_only_some_lines_name_are_told_apart_by_the_tree() -> None:
    def pair(n: int, **values: Any) -> list[dict[str, Any]]:
        asked = line("user", f"u{n}", None, f"Find {n}.", isSidechain=True, **values)
        return [asked, line("assistant", f"a{n}", f"u{n}", f"Found {n}.", isSidechain=True)]

    _, one, two = runs([*TALK, *pair(8, agentId="x7"), *pair(9)])
    assert [said(one), said(two)] == [["Find 8.", "Found 8."], ["Find 9.", "Found 9."]]
